//! The matrix server as a program of the microkernel: its network is asynchronous IPC with the network server, and it
//! has one coroutine for each connection.
//!
//! Messages and arithmetic are those of the Unix kernel's server ([`matrix`]), so that the same clients can use both.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;

use coroutine::Priority;
use matrix::{Request, Requests};
use sel4::mapping::Window;
use sel4::{Allocator, BootInformation, channel, executor, println};
use sockets::{Error, Network, PIECE, Stream};

const PORT: u16 = 7000;
const BACKLOG: usize = 128;

/// The reason why the server closes a connection.
type Reason = matrix::Reason<Error>;

/// Answers the requests of a connection, one after the other.
async fn answer(stream: &mut Stream) -> Result<(), Reason> {
    let mut requests = Requests::new(2 * PIECE);
    let (mut words, mut message) = (Vec::new(), Vec::new());
    loop {
        while let Some((request, _)) = requests.take().map_err(Reason::Malformed)? {
            multiply(&request, &mut words, &mut message);
            stream.write_all(&message).await.map_err(Reason::Failed)?;
        }
        match stream.read(requests.room()).await.map_err(Reason::Failed)? {
            0 => return requests.finish(),
            count => requests.add(count),
        }
    }
}

/// Writes the answer to a request into `message`; `words` is memory for the numbers.
fn multiply(request: &Request<'_>, words: &mut Vec<u32>, message: &mut Vec<u8>) {
    let elements = request.order.elements();
    words.resize(3 * elements, 0);
    let (left, rest) = words.split_at_mut(elements);
    let (right, product) = rest.split_at_mut(elements);
    request.left.copy_to(left);
    request.right.copy_to(right);
    matrix::multiply(request.order, left, right, product);
    message.resize(request.order.answer_bytes(), 0);
    matrix::encode_answer(request.order, request.sequence, product, message);
}

async fn serve(network: Network) -> Result<(), Error> {
    let listener = network.listen(PORT, BACKLOG).await?;
    // The line that the demonstration waits for, as the Unix kernel's server prints it.
    println!("matrix-server: listening on 0.0.0.0:{PORT}");
    loop {
        let mut stream = listener.accept().await?;
        executor::spawn(Priority::DEFAULT, async move {
            if let Err(reason) = answer(&mut stream).await {
                println!("matrix-server: closing {}: {reason}", stream.peer());
            }
        })
        .detach();
    }
}

#[sel4::root_task]
fn main(boot: BootInformation) {
    let (mut allocator, mut window) = (Allocator::new(&boot), Window::new(0x10_0000_0000, 0x10_1000_0000));
    sel4::heap::grow(&mut allocator, &mut window, 7).expect("it has memory for a heap");
    let end = channel::ends(&boot).next().expect("it was connected to the network server");
    let doorbell = boot.notification().expect("it has a notification");
    if let Err(error) = executor::run(doorbell, async move { serve(Network::new(end)).await }) {
        println!("matrix-server: {error}");
    }
}
