//! Echoes its input over TCP: the smallest possible server on the network server.
#![no_std]
#![no_main]

use coroutine::Priority;
use sel4::mapping::Window;
use sel4::{Allocator, BootInformation, channel, executor, println};
use sockets::{Network, PIECE, Result, Stream};

const PORT: u16 = 7001;
const BACKLOG: usize = 128;

async fn echo(mut stream: Stream) -> Result<()> {
    let mut bytes = [0; PIECE];
    loop {
        match stream.read(&mut bytes).await? {
            0 => return Ok(()),
            count => stream.write_all(&bytes[..count]).await?,
        }
    }
}

async fn serve(network: Network) -> Result<()> {
    let listener = network.listen(PORT, BACKLOG).await?;
    loop {
        let stream = listener.accept().await?;
        executor::spawn(Priority::DEFAULT, echo(stream)).detach();
    }
}

#[sel4::root_task]
fn main(boot: BootInformation) {
    let (mut allocator, mut window) = (Allocator::new(&boot), Window::new(0x10_0000_0000, 0x10_1000_0000));
    sel4::heap::grow(&mut allocator, &mut window, 1).expect("it has memory for a heap");
    let end = channel::ends(&boot).next().expect("it was connected to the network server");
    let doorbell = boot.notification().expect("it has a notification");
    let result = executor::run(doorbell, async move { serve(Network::new(end)).await });
    if let Err(error) = result {
        println!("echo-service: {error}");
    }
}
