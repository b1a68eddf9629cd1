//! The other side of asynchronous IPC, for the suite and for measurements: a program that is told by its arguments what
//! to be.
//!
//! A server answers each message with its first word plus one; the second word says how. As a program that ends it does
//! so in the way it is told.
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

/// Serves all its ends asynchronously; the next argument is how patient it is.
const SERVE: u64 = 0;
/// Serves synchronously; the next argument is the endpoint.
const SERVE_SYNCHRONOUSLY: u64 = 1;
/// Ends with a status, the next argument.
const EXIT: u64 = 2;
/// Panics.
const PANIC: u64 = 3;
/// Reads an address, the next argument.
const READ: u64 = 4;
/// Writes anything anywhere into the memory of its first end, so many times, and signals the other side now and then.
const SCRIBBLE: u64 = 5;
/// Calls the server at its first end so many times, one after the other, and ends with the number of wrong answers.
const CALL: u64 = 6;
/// Runs over the end of its stack.
const OVERFLOW: u64 = 7;
/// Serves as [`SERVE`], and where the machine can do it both sides ring each other's doorbells with stores.
const SERVE_BY_STORES: u64 = 8;

/// How a request is answered: at once, after others, never, or not at all because the program dies.
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
        // As long as the request, so that both take the same way.
        request = endpoint.reply_and_receive(&Message::new(0, &words[..request.length().min(8)]));
    }
}

/// Writes anything anywhere.
fn scribble(boot: &BootInformation, times: u64) {
    let Some(end) = channel::ends(boot).next() else { return };
    let words = end.memory().words();
    let mut random = 88_172_645_463_325_252_u64;
    for _ in 0..times {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Mostly where the indexes are, and mostly small numbers: what is far off is found out at once.
        let place = if random & 3 == 0 { random >> 32 } else { random >> 32 & 63 } as usize % words.len();
        // Not the end: that would be the end.
        if place != abi_queue::channel::CLOSED {
            words[place].store(if random & 4 == 0 { random >> 40 } else { random >> 8 & 15 }, Ordering::Relaxed);
        }
        if random & 0xff0 == 0 {
            end.doorbell().signal();
        }
    }
}

/// Takes more and more of the stack: each step a kilobyte that is written.
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
            // SAFETY: there may be nothing; that is what it is for.
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
