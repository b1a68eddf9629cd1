//! The other side of asynchronous IPC, for the suite and for measurements: a program whose first argument is its role.
//!
//! A server answers each message with its first word plus one; the second word selects the time of the answer. Other
//! roles end the program in different ways.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use coroutine::Priority;
use sel4::capability::{Endpoint, initial};
use sel4::channel::{self, Client, Message as Words, Server};
use sel4::mapping::Window;
use sel4::{Allocator, BootInformation, Message, executor};

/// Serves all its ends asynchronously; the next argument is the number of looks at the rings before it sleeps.
const SERVE: u64 = 0;
/// Serves synchronously; the next argument is the endpoint.
const SERVE_SYNCHRONOUSLY: u64 = 1;
/// Ends with a status, the next argument.
const EXIT: u64 = 2;
/// Panics.
const PANIC: u64 = 3;
/// Reads an address, the next argument.
const READ: u64 = 4;
/// Writes arbitrary words to arbitrary places of its first end's memory, so many times, and signals the other side now
/// and then.
const SCRIBBLE: u64 = 5;
/// Calls the server at its first end so many times, one after the other, and ends with the number of wrong answers.
const CALL: u64 = 6;
/// Overflows its stack.
const OVERFLOW: u64 = 7;
/// Serves as [`SERVE`]; where the machine can do it both sides ring each other's doorbells with stores.
const SERVE_BY_STORES: u64 = 8;

/// Time of an answer: at once (0), after others, never, or none because the program dies.
const LATER: u64 = 1;
const NEVER: u64 = 2;
const DIE: u64 = 3;

async fn answer(message: Words) -> Words {
    let [first, how, rest @ ..] = message;
    match how {
        LATER => coroutine::yield_now().await,
        NEVER => core::future::pending().await,
        DIE => panic!("a request says so"),
        _ => {}
    }
    let [w2, w3, w4, w5, w6] = rest;
    [first + 1, how, w2, w3, w4, w5, w6]
}

fn serve_synchronously(endpoint: Endpoint) -> ! {
    let mut request = endpoint.receive();
    loop {
        let mut words = [0; 8];
        words[0] = request.word(0).unwrap_or(0) + 1;
        // As long as the request, so that both take the same path in the kernel.
        request = endpoint.reply_and_receive(&Message::new(0, &words[..request.length().min(8)]));
    }
}

/// Writes arbitrary words to arbitrary places.
fn scribble(boot: &BootInformation, times: u64) {
    let Some(end) = channel::ends(boot).next() else { return };
    let words = end.memory().words();
    let mut random = 88_172_645_463_325_252_u64;
    for _ in 0..times {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Mostly at the indexes, and mostly small numbers: large ones are detected at once.
        let place = if random & 3 == 0 { random >> 32 } else { random >> 32 & 63 } as usize % words.len();
        // Not the mark of the end: that would close the connection.
        if place != abi_queue::channel::CLOSED {
            words[place].store(if random & 4 == 0 { random >> 40 } else { random >> 8 & 15 }, Ordering::Relaxed);
        }
        if random & 0xff0 == 0 {
            end.doorbell().signal();
        }
    }
}

/// Uses more and more of the stack: each step writes a kilobyte.
#[expect(unconditional_recursion, reason = "it is to end with a fault")]
fn descend(depth: u64) -> u64 {
    let mut frame = [depth; 128];
    core::hint::black_box(&mut frame);
    descend(depth + 1) + frame[depth as usize % 128]
}

#[sel4::root_task]
fn main(boot: BootInformation) {
    let mut arguments = boot.arguments();
    let (role, parameter) = (arguments.next().unwrap_or(SERVE), arguments.next().unwrap_or(0));
    match role {
        SERVE_SYNCHRONOUSLY => serve_synchronously(Endpoint::from_pointer(parameter)),
        EXIT => sel4::exit(parameter),
        PANIC => panic!("as told"),
        READ => {
            // SAFETY: the address may be unmapped; the fault is the purpose.
            let word = unsafe { core::ptr::with_exposed_provenance::<u64>(parameter as usize).read_volatile() };
            sel4::exit(word);
        }
        SCRIBBLE => return scribble(&boot, parameter),
        OVERFLOW => sel4::exit(descend(1)),
        _ => {}
    }
    let mut allocator = Allocator::new(&boot);
    let mut window = Window::new(0x10_0000_0000, 0x10_1000_0000);
    sel4::heap::grow(&mut allocator, &mut window, 1).expect("it has memory for a heap");
    let own = boot.notification().expect("it has a notification");
    let mut ends_by_stores = Vec::new();
    if role == SERVE_BY_STORES {
        executor::receive_stores(initial::THREAD, own).expect("its notification can be bound");
        for end in channel::ends(&boot) {
            let end = end.signalled_by_stores(&mut allocator, &mut window);
            ends_by_stores.push(end.expect("it has addresses"));
        }
    }
    let status = executor::run(own, async move {
        if role == CALL {
            let client = Client::new(channel::ends(&boot).next().expect("it has an end"));
            let mut wrong = 0;
            for number in 0..parameter {
                let right = Ok([number + 1, number & 1, 2, 3, 4, 5, 6]);
                wrong += u64::from(client.call([number, number & 1, 2, 3, 4, 5, 6]).await != right);
            }
            return wrong;
        }
        executor::set_patience(parameter as u32);
        if role == SERVE_BY_STORES {
            for end in ends_by_stores {
                executor::spawn(Priority::HIGHEST, Server::new(end).serve(answer)).detach();
            }
            return core::future::pending().await;
        }
        for (number, end) in channel::ends(&boot).enumerate() {
            let priority = Priority::saturating(number as u64);
            executor::spawn(priority, Server::new(end).serve(answer)).detach();
        }
        core::future::pending().await
    });
    sel4::exit(status);
}
