//! Links the package as a program.

fn main() {
    link::program();
}
