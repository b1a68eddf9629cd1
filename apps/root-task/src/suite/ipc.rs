//! Messages through endpoints.

use core::sync::atomic::{AtomicU64, Ordering};

use sel4::abi::{CapabilityTag, Error};
use sel4::capability::{CNode, Endpoint, Slot, initial};
use sel4::message::{reply, reply_to_saved};
use sel4::raw::{self, debug_identify};
use sel4::thread::Start;
use sel4::{Message, ObjectType, Rights};

use crate::harness::{Bench, Outcome, PRIORITY, let_run};
use crate::{check, equal, refused};

/// Result of a thread for the test.
static RESULT: AtomicU64 = AtomicU64::new(0);

/// Serves until the end: each answer is the request's words in reverse, with the badge added to the label.
fn reverse_server(endpoint: u64) {
    let endpoint = Endpoint::from_pointer(endpoint);
    let mut request = endpoint.receive();
    loop {
        let mut words = [0; 120];
        let length = request.length();
        for (index, word) in words[..length].iter_mut().enumerate() {
            *word = request.word(length - 1 - index).unwrap_or(0);
        }
        request = endpoint.reply_and_receive(&Message::new(request.label() + request.badge(), &words[..length]));
    }
}

pub fn a_server_answers_its_clients(bench: &mut Bench<'_>) -> Outcome {
    let endpoint = bench.endpoint()?;
    let client = Endpoint::from_pointer(bench.badged(endpoint.pointer(), Rights::ALL, 5)?);
    bench.spawn(reverse_server, endpoint.pointer())?;
    let words: [u64; 120] = core::array::from_fn(|index| 3 * index as u64 + 1);
    for length in [0, 1, 2, 3, 4, 5, 6, 17, 119, 120] {
        let answer = client.call(&Message::new(40, &words[..length]));
        equal!((length, answer.label(), answer.length()), (length, 45, length));
        for index in 0..length {
            equal!((index, answer.word(index)), (index, Some(words[length - 1 - index])));
        }
    }
    Ok(())
}

pub fn labels_have_fifty_two_bits(bench: &mut Bench<'_>) -> Outcome {
    let endpoint = bench.endpoint()?;
    bench.spawn(reverse_server, endpoint.pointer())?;
    let label = (1 << 52) - 1;
    equal!(endpoint.call(&Message::new(label, &[])).label(), label);
    Ok(())
}

fn send_three(endpoint: u64) {
    for label in 1..=3 {
        Endpoint::from_pointer(endpoint).send(&Message::new(label, &[label * 10]));
        RESULT.store(label, Ordering::Relaxed);
    }
}

pub fn a_send_waits_for_its_receiver(bench: &mut Bench<'_>) -> Outcome {
    RESULT.store(0, Ordering::Relaxed);
    let endpoint = bench.endpoint()?;
    equal!(endpoint.receive_now(), None);
    let sender = bench.badged(endpoint.pointer(), Rights::WRITE, 9)?;
    bench.spawn(send_three, sender)?;
    let_run(PRIORITY)?;
    for label in 1..=3 {
        equal!(RESULT.load(Ordering::Relaxed), label - 1);
        let received = endpoint.receive();
        equal!((received.badge(), received.label(), received.word(0)), (9, label, Some(label * 10)));
        let_run(PRIORITY)?;
    }
    equal!(endpoint.receive_now(), None);
    Ok(())
}

fn receive_one(endpoint: u64) {
    let received = Endpoint::from_pointer(endpoint).receive();
    RESULT.store(received.label(), Ordering::Relaxed);
}

pub fn a_send_that_does_not_wait_needs_a_receiver(bench: &mut Bench<'_>) -> Outcome {
    RESULT.store(0, Ordering::Relaxed);
    let endpoint = bench.endpoint()?;
    endpoint.send_or_lose(&Message::new(1, &[]));
    bench.spawn(receive_one, endpoint.pointer())?;
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 0);
    endpoint.send_or_lose(&Message::new(2, &[]));
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 2);
    Ok(())
}

pub fn the_most_important_receives_first(bench: &mut Bench<'_>) -> Outcome {
    // Waiting threads are queued in the order in which they came, whatever their priority.
    let endpoint = bench.endpoint()?;
    for argument in [1, 2, 3] {
        let sender = bench.badged(endpoint.pointer(), Rights::ALL, argument)?;
        let start = Start::new(
            |pointer| Endpoint::from_pointer(pointer).send(&Message::default()),
            sender,
            PRIORITY - argument,
        );
        bench.spawn_with(start)?;
        let_run(PRIORITY - argument)?;
    }
    for expected in [1, 2, 3] {
        equal!(endpoint.receive().badge(), expected);
    }
    Ok(())
}

pub fn capabilities_are_transferred_with_the_right_to_grant(bench: &mut Bench<'_>) -> Outcome {
    let endpoint = bench.endpoint()?;
    let notification = bench.notification()?;
    let slot = bench.slot()?;
    for (rights, expected) in [(Rights::ALL, 1), (Rights::READ_WRITE, 0)] {
        let sender = bench.badged(endpoint.pointer(), rights, 1)?;
        let argument = sender << 32 | notification.pointer();
        bench.spawn(send_capability, argument)?;
        raw::set_receive_slot(initial::CNODE.pointer(), slot.index, 64);
        let received = endpoint.receive();
        equal!((received.capabilities(), received.unwrapped()), (expected, 0));
        let tag = if expected == 1 { CapabilityTag::Notification } else { CapabilityTag::Null };
        equal!(debug_identify(slot.index), Some(tag));
        slot.delete()?;
    }
    Ok(())
}

/// Sends a capability through an endpoint: the two in one word.
fn send_capability(argument: u64) {
    let (endpoint, capability) = (Endpoint::from_pointer(argument >> 32), argument & 0xffff_ffff);
    endpoint.send(&Message { label: 7, words: &[1], capabilities: &[capability] });
}

pub fn a_full_receive_slot_takes_nothing(bench: &mut Bench<'_>) -> Outcome {
    let endpoint = bench.endpoint()?;
    let notification = bench.notification()?;
    let full = Slot::own(notification.pointer());
    bench.spawn(send_capability, endpoint.pointer() << 32 | notification.pointer())?;
    raw::set_receive_slot(initial::CNODE.pointer(), full.index, 64);
    let received = endpoint.receive();
    equal!((received.label(), received.word(0), received.capabilities()), (7, Some(1), 0));
    Ok(())
}

pub fn the_endpoints_own_capabilities_arrive_as_badges(bench: &mut Bench<'_>) -> Outcome {
    let endpoint = bench.endpoint()?;
    let badged = bench.badged(endpoint.pointer(), Rights::ALL, 77)?;
    bench.spawn(send_capability, endpoint.pointer() << 32 | badged)?;
    let received = endpoint.receive();
    equal!((received.capabilities(), received.unwrapped()), (1, 1));
    equal!(raw::buffer_badge(0), 77);
    Ok(())
}

fn call_once(endpoint: u64) {
    let answer = Endpoint::from_pointer(endpoint).call(&Message::new(1, &[]));
    RESULT.store(answer.word(0).unwrap_or(u64::MAX), Ordering::Relaxed);
}

pub fn the_right_to_reply_can_be_kept(bench: &mut Bench<'_>) -> Outcome {
    RESULT.store(0, Ordering::Relaxed);
    let endpoint = bench.endpoint()?;
    let slot = bench.slot()?;
    bench.spawn(call_once, endpoint.pointer())?;
    endpoint.receive();
    refused!(Slot::own(endpoint.pointer()).save_caller(), DeleteFirst);
    slot.save_caller()?;
    equal!(debug_identify(slot.index), Some(CapabilityTag::Reply));
    // It cannot be copied, and the saved caller is not the last caller any more.
    let other = bench.slot()?;
    refused!(other.copy_from(slot, Rights::ALL), IllegalOperation);
    reply(&Message::new(0, &[1]));
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 0);
    other.move_from(slot)?;
    reply_to_saved(other.index, &Message::new(0, &[2]));
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 2);
    equal!(debug_identify(other.index), Some(CapabilityTag::Null));
    // Without a caller no capability is saved.
    slot.save_caller()?;
    equal!(debug_identify(slot.index), Some(CapabilityTag::Null));
    Ok(())
}

pub fn a_caller_without_the_right_to_be_replied_to_stops(bench: &mut Bench<'_>) -> Outcome {
    RESULT.store(0, Ordering::Relaxed);
    let endpoint = bench.endpoint()?;
    let caller = bench.badged(endpoint.pointer(), Rights::READ_WRITE, 1)?;
    bench.spawn(call_once, caller)?;
    equal!(endpoint.receive().badge(), 1);
    reply(&Message::new(0, &[5]));
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 0);
    let granted = bench.badged(endpoint.pointer(), Rights::READ_WRITE.union(Rights::GRANT_REPLY), 2)?;
    bench.spawn(call_once, granted)?;
    equal!(endpoint.receive().badge(), 2);
    reply(&Message::new(0, &[6]));
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 6);
    Ok(())
}

pub fn callers_of_the_dead(bench: &mut Bench<'_>) -> Outcome {
    RESULT.store(0, Ordering::Relaxed);
    let endpoint = bench.endpoint()?;
    // A caller whose message was received is deleted, and then gets a reply.
    let caller = bench.spawn(call_once, endpoint.pointer())?;
    endpoint.receive();
    caller.delete()?;
    reply(&Message::new(0, &[1]));
    // An endpoint is deleted while a caller waits: the call ends without an answer, and the thread repeats the
    // instruction.
    let memory = bench.allocator.memory(4)?.untyped();
    let slot = bench.slot()?;
    memory.retype(ObjectType::Endpoint, 0, Slot { root: initial::CNODE, index: 0, depth: 0 }, slot.index, 1)?;
    let waiting = bench.spawn(receive_one, slot.index)?;
    let_run(PRIORITY)?;
    slot.delete()?;
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 0);
    waiting.delete()?;
    // A suspended caller is not replied to.
    let caller = bench.spawn(call_once, endpoint.pointer())?;
    endpoint.receive();
    caller.thread.suspend()?;
    reply(&Message::new(0, &[3]));
    let_run(PRIORITY)?;
    equal!(RESULT.load(Ordering::Relaxed), 0);
    Ok(())
}

pub fn replies_without_a_caller_do_nothing(_: &mut Bench<'_>) -> Outcome {
    reply(&Message::new(0, &[1, 2, 3]));
    Ok(())
}

pub fn objects_of_other_kinds_are_no_endpoints(bench: &mut Bench<'_>) -> Outcome {
    let unknown = Endpoint::from_pointer(initial::THREAD.pointer()).call(&Message::new(200, &[]));
    equal!(unknown.label(), Error::IllegalOperation.number() as u64);
    let empty = bench.slot()?;
    let null = Endpoint::from_pointer(empty.index).call(&Message::new(1, &[]));
    equal!((null.label(), null.word(0)), (Error::InvalidCapability.number() as u64, Some(0)));
    // Refused sends report no error.
    Endpoint::from_pointer(empty.index).send(&Message::new(1, &[]));
    Endpoint::from_pointer(empty.index).send_or_lose(&Message::new(1, &[]));
    Ok(())
}

pub fn a_receive_slot_may_lie_in_another_table(bench: &mut Bench<'_>) -> Outcome {
    let endpoint = bench.endpoint()?;
    let node = CNode::from_pointer(bench.allocator.make(ObjectType::CapTable, 4, 1)?);
    bench.spawn(
        send_capability,
        endpoint.pointer() << 32 | bench.boot.untypeds().next().map_or(0, |_| initial::THREAD.pointer()),
    )?;
    raw::set_receive_slot(node.pointer(), 6, 4);
    equal!(raw::receive_slot(), (node.pointer(), 6, 4));
    equal!(endpoint.receive().capabilities(), 1);
    let seen = bench.slot()?;
    seen.move_from(node.slot(6, 4))?;
    equal!(debug_identify(seen.index), Some(CapabilityTag::Thread));
    check!(node.slot(6, 4).delete().is_ok());
    Ok(())
}
