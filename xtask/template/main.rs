//! Greets each name on the command line, in a coroutine of its own.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;

#[cops::main]
async fn main() {
    let greetings: Vec<_> = cops::arguments()
        .skip(1)
        .map(|name| cops::spawn(async move { cops::println!("Hello, {}!", name.to_string_lossy()) }))
        .collect();
    if greetings.is_empty() {
        cops::println!("Hello, world!");
    }
    for greeting in greetings {
        greeting.await.expect("no greeting is cancelled");
    }
}
