//! A server and its clients over an endpoint: an example of communication between programs of the microkernel.
//!
//! The server keeps a balance for each client. It identifies clients by the *badge* of the capability with which they
//! call: a number that the kernel puts into each message, that was chosen by the maker of the capability, and that no
//! client can change. Clients can only call: their capabilities have neither the right to receive nor the right to
//! grant capabilities. When all clients are done they signal one notification, each with a bit of its own.
#![no_std]
#![no_main]

use sel4::capability::{Endpoint, Notification, Slot};
use sel4::mapping::Window;
use sel4::thread::{Start, spawn};
use sel4::{Allocator, BootInformation, Message, ObjectType, Result, Rights, println};

/// Adds the first word to the client's balance; the answer's first word is the new balance.
const DEPOSIT: u64 = 1;
/// Takes the first word from the balance, if there is as much.
const WITHDRAW: u64 = 2;

/// The answer's label: success.
const DONE: u64 = 0;
/// The answer's label: the balance is too low, or would be too high.
const REFUSED: u64 = 1;
/// The answer's label: there is no such request.
const UNKNOWN: u64 = 2;

/// Number of clients; badges count from 1.
const CLIENTS: u64 = 3;

/// The server is more important than its clients, so it waits when they call.
const SERVER_PRIORITY: u64 = 110;
const CLIENT_PRIORITY: u64 = 100;

/// Serves for ever.
fn serve(endpoint: u64) {
    let endpoint = Endpoint::from_pointer(endpoint);
    let mut balances = [0_u64; CLIENTS as usize];
    let mut request = endpoint.receive();
    loop {
        // The badge comes from the kernel and not from the client.
        let balance = &mut balances[request.badge() as usize - 1];
        let changed = match (request.label(), request.word(0)) {
            (DEPOSIT, Some(amount)) => balance.checked_add(amount).ok_or(REFUSED),
            (WITHDRAW, Some(amount)) => balance.checked_sub(amount).ok_or(REFUSED),
            _ => Err(UNKNOWN),
        };
        let label = match changed {
            Ok(changed) => {
                *balance = changed;
                DONE
            }
            Err(label) => label,
        };
        request = endpoint.reply_and_receive(&Message::new(label, &[*balance]));
    }
}

/// A client's arguments in one word: its number, its capability to the server, and the one to signal its end.
#[derive(Clone, Copy)]
struct Client {
    number: u64,
    server: Endpoint,
    done: Notification,
}

impl Client {
    fn to_word(self) -> u64 {
        self.number << 48 | self.server.pointer() << 24 | self.done.pointer()
    }

    fn from_word(word: u64) -> Client {
        let pointer = |shift: u32| word >> shift & 0xff_ffff;
        Client {
            number: word >> 48,
            server: Endpoint::from_pointer(pointer(24)),
            done: Notification::from_pointer(pointer(0)),
        }
    }
}

/// Deposits, withdraws, and tries to withdraw more than the balance.
fn use_ledger(word: u64) {
    let client = Client::from_word(word);
    for (request, amount) in [(DEPOSIT, 100 * client.number), (WITHDRAW, 30), (WITHDRAW, 1_000), (9, 0)] {
        let answer = client.server.call(&Message::new(request, &[amount]));
        let what = match answer.label() {
            DONE => "done",
            REFUSED => "refused",
            _ => "not understood",
        };
        println!(
            "client {}: request {request} of {amount}: {what}, balance {}",
            client.number,
            answer.word(0).unwrap_or(0)
        );
    }
    client.done.signal();
}

fn start(boot: &BootInformation) -> Result<()> {
    let mut allocator = Allocator::new(boot);
    let mut window = Window::new(0x10_0000_0000, 0x10_1000_0000);
    let endpoint = allocator.object(ObjectType::Endpoint)?;
    let notification = Notification::from_pointer(allocator.object(ObjectType::Notification)?);
    spawn(&mut allocator, &mut window, Start::new(serve, endpoint, SERVER_PRIORITY))?;
    for number in 1..=CLIENTS {
        let server = allocator.slot()?;
        // Rights to write and to be replied to, and no others.
        Slot::own(server).mint_from(Slot::own(endpoint), Rights::WRITE.union(Rights::GRANT_REPLY), number)?;
        let done = allocator.slot()?;
        Slot::own(done).mint_from(Slot::own(notification.pointer()), Rights::WRITE, 1 << number)?;
        let client = Client { number, server: Endpoint::from_pointer(server), done: Notification::from_pointer(done) };
        spawn(&mut allocator, &mut window, Start::new(use_ledger, client.to_word(), CLIENT_PRIORITY))?;
    }
    let mut missing = (1 << (CLIENTS + 1)) - 2;
    while missing != 0 {
        missing &= !notification.wait();
    }
    // Deletes all capabilities to the endpoint, and cancels the calls of threads that still wait there.
    Slot::own(endpoint).revoke()?;
    Slot::own(endpoint).delete()?;
    println!("all clients are done");
    Ok(())
}

#[sel4::root_task]
fn main(boot: BootInformation) {
    if let Err(failure) = start(&boot) {
        println!("the ledger cannot be kept: {failure}");
    }
}
