//! Both ends on the host: against a model, and each against a peer that writes arbitrary words.

use alloc::collections::{BTreeMap, VecDeque};
use core::sync::atomic::AtomicUsize;

use proptest::prelude::*;

use super::*;

/// Counts how often it was rung.
#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>);

impl Doorbell for Count {
    fn ring(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Makes both ends, and the doorbells of client and server.
fn pair(capacity: usize) -> (Client<Count>, Server<Count>, [Count; 2]) {
    let bells = [Count::default(), Count::default()];
    let (client, server) = connect_here(capacity, 0, bells[0].clone(), bells[1].clone());
    (Client::unattended(client), Server::unattended(server), bells)
}

type Calling = Pin<Box<dyn Future<Output = Result<Message, Error>>>>;

fn call(client: &Client<Count>, first: u64) -> Calling {
    let client = client.clone();
    Box::pin(async move { client.call([first, 1, 2, 3, 4, 5, 6]).await })
}

/// Answers at once, with the first word plus one.
async fn next(message: Message) -> Message {
    [message[0] + 1, message[1], message[2], message[3], message[4], message[5], message[6]]
}

#[test]
fn a_call_is_answered_with_one_signal_each_way_and_only_to_sleepers() {
    let (client, server, [of_client, of_server]) = pair(16);
    let (client_end, server_end) = (client.end.clone(), server.end.clone());
    let mut serving = Box::pin(server.serve(next));
    assert!(poll(&mut serving).is_pending());
    assert!(server_end.fall_asleep() && client_end.fall_asleep());
    let mut calls: Vec<_> = (0..10).map(|number| call(&client, number)).collect();
    assert!(calls.iter_mut().all(|call| poll(call).is_pending()));
    assert!(!client_end.attend());
    assert_eq!((of_client.get(), of_server.get()), (0, 1));
    // It was called, and is not called again for more.
    calls.push(call(&client, 10));
    assert!(poll(&mut calls[10]).is_pending() && !client_end.attend());
    assert_eq!(of_server.get(), 1);
    server_end.wake_up();
    assert!(server_end.attend() && poll(&mut serving).is_pending() && !server_end.attend());
    assert_eq!(of_client.get(), 1);
    client_end.wake_up();
    assert!(client_end.attend() && !client_end.attend());
    for (number, call) in calls.iter_mut().enumerate() {
        assert_eq!(poll(call), Poll::Ready(Ok([number as u64 + 1, 1, 2, 3, 4, 5, 6])));
    }
    // While both are awake neither is called.
    let mut one = call(&client, 7);
    assert!(poll(&mut one).is_pending() && !client_end.attend() && server_end.attend());
    assert!(poll(&mut serving).is_pending() && client_end.attend());
    assert_eq!(poll(&mut one), Poll::Ready(Ok([8, 1, 2, 3, 4, 5, 6])));
    assert_eq!((of_client.get(), of_server.get()), (1, 1));
}

#[test]
fn one_more_than_there_are_places_waits_for_one() {
    let (client, server, _) = pair(16);
    let (client_end, mut serving) = (client.end.clone(), Box::pin(server.serve(next)));
    let mut calls: VecDeque<_> = (0..17).map(|number| call(&client, number)).collect();
    assert!(calls.iter_mut().all(|call| poll(call).is_pending()));
    assert_eq!(client_end.state.lock().requests.published(), 16);
    assert!(poll(&mut serving).is_pending());
    client_end.attend();
    assert_eq!(poll(&mut calls.pop_front().unwrap()), Poll::Ready(Ok([1, 1, 2, 3, 4, 5, 6])));
    assert!(poll(&mut calls[15]).is_pending());
    assert_eq!(client_end.state.lock().requests.published(), 17);
    assert!(poll(&mut serving).is_pending());
    client_end.attend();
    assert_eq!(poll(&mut calls[15]), Poll::Ready(Ok([17, 1, 2, 3, 4, 5, 6])));
}

#[test]
fn a_dropped_call_keeps_its_place_until_it_is_answered() {
    let (client, server, _) = pair(16);
    let (client_end, mut serving) = (client.end.clone(), Box::pin(server.serve(next)));
    let mut calls: Vec<_> = (0..16).map(|number| call(&client, number)).collect();
    assert!(calls.iter_mut().all(|call| poll(call).is_pending()));
    drop(calls);
    let mut late = call(&client, 100);
    assert!(poll(&mut late).is_pending() && poll(&mut late).is_pending());
    assert_eq!(client_end.state.lock().requests.published(), 16);
    assert!(poll(&mut serving).is_pending() && client_end.attend());
    assert!(poll(&mut late).is_pending());
    assert!(poll(&mut serving).is_pending() && client_end.attend());
    assert_eq!(poll(&mut late), Poll::Ready(Ok([101, 1, 2, 3, 4, 5, 6])));
}

#[test]
fn the_end_of_either_side_reaches_the_other() {
    // The server's.
    let (client, server, [of_client, _]) = pair(16);
    let client_end = client.end.clone();
    let mut serving = Box::pin(server.serve(|_| core::future::pending()));
    let mut calls = [call(&client, 1), call(&client, 2)];
    assert!(calls.iter_mut().all(|call| poll(call).is_pending()) && poll(&mut serving).is_pending());
    let mut many: Vec<_> = (0..20).map(|number| call(&client, number)).collect();
    assert!(many.iter_mut().all(|call| poll(call).is_pending()));
    assert!(client_end.fall_asleep());
    drop(serving);
    assert_eq!(of_client.get(), 1);
    assert!(client_end.attend() && client_end.is_over());
    assert!(calls.iter_mut().chain(&mut many).all(|call| poll(call) == Poll::Ready(Err(Error::Closed))));
    assert_eq!(poll(&mut call(&client, 3)), Poll::Ready(Err(Error::Closed)));
    // The client's, with a request that waits in the server.
    let (client, server, [_, of_server]) = pair(16);
    let server_end = server.end.clone();
    let alive = Arc::new(());
    let held = alive.clone();
    let mut serving = Box::pin(server.serve(move |_| {
        let held = held.clone();
        async move {
            let _held = held;
            core::future::pending().await
        }
    }));
    let mut one = call(&client, 1);
    assert!(poll(&mut one).is_pending() && poll(&mut serving).is_pending());
    assert_eq!(Arc::strong_count(&alive), 3);
    assert!(server_end.fall_asleep());
    drop(one);
    drop(client);
    assert_eq!(of_server.get(), 1);
    assert!(server_end.attend());
    assert_eq!(poll(&mut serving), Poll::Ready(Error::Closed));
    assert_eq!(Arc::strong_count(&alive), 1);
    assert!(server_end.is_over());
}

/// The other side sees an awake one, and does not ring.
#[test]
fn a_side_does_not_fall_asleep_behind_the_end() {
    let (client, server, [_, of_server]) = pair(16);
    let server_end = server.end.clone();
    let mut serving = Box::pin(server.serve(next));
    assert!(poll(&mut serving).is_pending() && !server_end.attend());
    drop(client);
    assert_eq!(of_server.get(), 0);
    assert!(!server_end.fall_asleep());
    assert_eq!(server_end.rings.header[channel::SERVER_STATE].load(Ordering::Relaxed), AWAKE);
    assert!(server_end.attend());
    assert_eq!(poll(&mut serving), Poll::Ready(Error::Closed));
    assert!(server_end.fall_asleep());

    let (client, server, [of_client, _]) = pair(16);
    let client_end = client.end.clone();
    let mut one = call(&client, 1);
    assert!(poll(&mut one).is_pending() && !client_end.attend());
    drop(server);
    assert_eq!(of_client.get(), 0);
    assert!(!client_end.fall_asleep());
    assert_eq!(client_end.rings.header[channel::CLIENT_STATE].load(Ordering::Relaxed), AWAKE);
    assert!(client_end.attend());
    assert_eq!(poll(&mut one), Poll::Ready(Err(Error::Closed)));
    assert!(client_end.fall_asleep());
}

/// A request that is answered when the test opens its door.
type Doors = Arc<Spin<BTreeMap<u64, (bool, Option<Waker>)>>>;

proptest! {
    #![proptest_config(property::cases(256))]

    /// Calls, answers in any order, drops, sleeps: every call that is not dropped gets its own answer, and a sleeping
    /// side with entries in its ring was rung.
    #[test]
    fn every_call_gets_its_answer(steps in prop::collection::vec((0_u8..6, any::<u16>()), 1..300)) {
        let (client, server, bells) = pair(16);
        let (client_end, server_end) = (client.end.clone(), server.end.clone());
        let doors: Doors = Arc::new(Spin::new(BTreeMap::new()));
        let inside = doors.clone();
        let mut serving = Box::pin(server.serve(move |message: Message| {
            let doors = inside.clone();
            poll_fn(move |context| {
                let mut doors = doors.lock();
                let door = doors.entry(message[0]).or_insert((false, None));
                if door.0 {
                    return Poll::Ready([message[0] ^ 0xffff, 0, 0, 0, 0, 0, 0]);
                }
                door.1 = Some(context.waker().clone());
                Poll::Pending
            })
        }));
        let mut calls: BTreeMap<u64, Calling> = BTreeMap::new();
        let (mut made, mut answered) = (0_u64, 0_u64);
        let mut dropped = 0_u64;
        let finish = |calls: &mut BTreeMap<u64, Calling>| {
            let mut done = Vec::new();
            for (number, call) in calls.iter_mut() {
                if let Poll::Ready(result) = poll(call) {
                    assert_eq!(result, Ok([number ^ 0xffff, 0, 0, 0, 0, 0, 0]));
                    done.push(*number);
                }
            }
            done.iter().for_each(|number| drop(calls.remove(number)));
            done.len() as u64
        };
        for (step, choice) in steps {
            match step {
                0 | 1 => {
                    let mut one = call(&client, made);
                    prop_assert!(poll(&mut one).is_pending());
                    calls.insert(made, one);
                    made += 1;
                }
                2 => {
                    client_end.attend();
                    answered += finish(&mut calls);
                }
                3 => {
                    server_end.attend();
                    prop_assert!(poll(&mut serving).is_pending());
                }
                4 => {
                    let mut doors = doors.lock();
                    let closed: Vec<_> = doors.iter().filter(|door| !door.1.0).map(|door| *door.0).collect();
                    if !closed.is_empty() {
                        let door = doors.get_mut(&closed[usize::from(choice) % closed.len()]).unwrap();
                        door.0 = true;
                        if let Some(waker) = door.1.take() {
                            waker.wake();
                        }
                    }
                }
                _ => {
                    let keys: Vec<_> = calls.keys().copied().collect();
                    if !keys.is_empty() {
                        calls.remove(&keys[usize::from(choice) % keys.len()]);
                        dropped += 1;
                    }
                }
            }
        }
        // Sleep and ring until all is done.
        loop {
            client_end.attend();
            answered += finish(&mut calls);
            if calls.is_empty() {
                break;
            }
            let before = bells[1].get();
            let slept = server_end.fall_asleep();
            client_end.attend();
            prop_assert!(!slept || bells[1].get() > before || client_end.state.lock().requests.published() == server_end.state.lock().requests.taken());
            server_end.wake_up();
            for door in doors.lock().values_mut() {
                door.0 = true;
                if let Some(waker) = door.1.take() {
                    waker.wake();
                }
            }
            prop_assert!(poll(&mut serving).is_pending());
        }
        prop_assert_eq!(answered + dropped, made);
    }

    /// A server that writes arbitrary words: the client neither panics nor returns an answer without a call, and every
    /// call ends.
    #[test]
    fn a_client_survives_any_server(
        writes in prop::collection::vec((0_usize..320, prop_oneof![0_u64..40, any::<u64>()], 0_u8..4), 0..200),
    ) {
        let (client, server, _) = pair(16);
        let (client_end, rings) = (client.end.clone(), server.end.rings);
        let mut calls: Vec<Calling> = Vec::new();
        let mut failed = false;
        for (place, value, step) in writes {
            rings.word(place).store(value, Ordering::Relaxed);
            match step {
                0 => calls.push(call(&client, value)),
                1 => _ = client_end.attend(),
                2 => {
                    client_end.fall_asleep();
                    client_end.wake_up();
                }
                _ => {}
            }
            calls.retain_mut(|call| match poll(call) {
                Poll::Pending => true,
                Poll::Ready(result) => {
                    failed |= result.is_err();
                    false
                }
            });
            prop_assert_eq!(client_end.state.lock().failure.is_some(), client.failure().is_some());
        }
        prop_assert!(!failed || client.failure().is_some());
        rings.word(channel::CLOSED).store(1, Ordering::Relaxed);
        client_end.attend();
        prop_assert!(client.failure().is_some());
        prop_assert!(calls.iter_mut().all(|call| poll(call).is_ready()));
        let state = client_end.state.lock();
        // No place was lost or given twice.
        let free: alloc::collections::BTreeSet<_> = state.free.iter().collect();
        prop_assert_eq!(free.len(), state.free.len());
    }

    /// A client that writes arbitrary words: the server neither panics nor works on more requests than it has places,
    /// and its `serve` ends.
    #[test]
    fn a_server_survives_any_client(
        writes in prop::collection::vec((0_usize..320, prop_oneof![0_u64..40, any::<u64>()], 0_u8..4), 0..200),
    ) {
        let (client, server, _) = pair(16);
        let (server_end, rings) = (server.end.clone(), server.end.rings);
        let alive = Arc::new(());
        let held = alive.clone();
        let mut serving = Box::pin(server.serve(move |message: Message| {
            let held = held.clone();
            async move {
                let _held = held;
                // Some are answered at once, some later, some never.
                match message[0] % 3 {
                    0 => message,
                    1 => {
                        coroutine::yield_now().await;
                        message
                    }
                    _ => core::future::pending().await,
                }
            }
        }));
        let mut over = None;
        for (place, value, step) in writes {
            rings.word(place).store(value, Ordering::Relaxed);
            match step {
                0 => _ = server_end.attend(),
                1 => {
                    server_end.fall_asleep();
                    server_end.wake_up();
                }
                _ => {}
            }
            if over.is_none()
                && let Poll::Ready(error) = poll(&mut serving)
            {
                over = Some(error);
            }
            prop_assert!(Arc::strong_count(&alive) <= 2 + 16);
        }
        rings.word(channel::CLOSED).store(1, Ordering::Relaxed);
        if over.is_none() {
            prop_assert_eq!(poll(&mut serving), Poll::Ready(Error::Closed));
        }
        prop_assert!(server_end.is_over());
        drop(client);
    }
}
