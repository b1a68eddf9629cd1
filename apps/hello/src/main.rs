//! The first program.
#![no_std]
#![no_main]

use unix::println;

unix::entry!(main);

fn main() -> i32 {
    println!("Hello, world!");
    0
}
