//! The first program.
#![no_std]
#![no_main]

#[cops::main]
async fn main() {
    cops::println!("Hello, world!");
}
