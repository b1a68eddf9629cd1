//! Links the package as a root task that contains programs.

fn main() {
    link::root_task_with_programs();
}
