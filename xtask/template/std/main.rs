//! Greets each name on the command line, in a coroutine of its own.

#[cops::main]
async fn main() {
    let greetings: Vec<_> = std::env::args()
        .skip(1)
        .map(|name| cops::spawn(async move { println!("Hello, {name}!") }))
        .collect();
    if greetings.is_empty() {
        println!("Hello, world!");
    }
    for greeting in greetings {
        greeting.await.expect("no greeting is cancelled");
    }
}
