//! Links the package as a program of COPS.

fn main() {
    link::program();
}
