//! Links the package as a root task.

fn main() {
    link::root_task();
}
