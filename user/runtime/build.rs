//! Tells the code whether it is for programs that run on COPS.

fn main() {
    link::library();
}
