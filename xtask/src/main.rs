//! The one door for chores.
fn main() {}
