//! The models with three threads for each connection: all calls are synchronous, and queues are a lock with two
//! conditions.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use abi_unix::types::{SHUT_RDWR, socket_option};
use cops::system::{self, Descriptor};
use cops::thread::{self, Builder, Condvar, Mutex};
use cops::{Errno, eprintln};
use matrix::Requests;

use crate::{FIRST_BUFFER, PAUSE, QUEUE, Reason, answer};

/// Bytes of a stage's stack; pages come at their first use.
const STACK: usize = 32 * 1024;

/// A queue of messages from one stage to the next.
struct Queue {
    state: Mutex<State>,
    filled: Condvar,
    emptied: Condvar,
}

struct State {
    messages: VecDeque<Vec<u8>>,
    /// One of the two ends is gone.
    closed: bool,
}

struct Sender(Arc<Queue>);
struct Receiver(Arc<Queue>);

fn queue() -> (Sender, Receiver) {
    let state = State { messages: VecDeque::with_capacity(QUEUE), closed: false };
    let queue = Arc::new(Queue { state: Mutex::new(state), filled: Condvar::new(), emptied: Condvar::new() });
    (Sender(queue.clone()), Receiver(queue))
}

impl Queue {
    fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_all();
        self.emptied.notify_all();
    }
}

impl Sender {
    /// Waits for room; `false` if the receiver is gone.
    fn send(&self, message: Vec<u8>) -> bool {
        let mut state = self.0.state.lock();
        while state.messages.len() == QUEUE && !state.closed {
            state = self.0.emptied.wait(state);
        }
        if state.closed {
            return false;
        }
        state.messages.push_back(message);
        drop(state);
        self.0.filled.notify_one();
        true
    }
}

impl Receiver {
    /// Waits for a message; `None` if the sender is gone.
    fn receive(&self) -> Option<Vec<u8>> {
        let mut state = self.0.state.lock();
        loop {
            if let Some(message) = state.messages.pop_front() {
                drop(state);
                self.0.emptied.notify_one();
                return Some(message);
            }
            if state.closed {
                return None;
            }
            state = self.0.filled.wait(state);
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Accepts connections for ever. Returns only if the listening socket itself fails.
pub fn serve(listener: &Descriptor) -> Errno {
    let mut pause = PAUSE.0;
    loop {
        let error = match system::network::accept(listener.raw()) {
            Ok((stream, peer)) => match open(stream, peer) {
                Ok(()) => {
                    pause = PAUSE.0;
                    continue;
                }
                Err(error) => error,
            },
            Err(Errno::ECONNABORTED | Errno::EINTR | Errno::EAGAIN) => continue,
            Err(error @ (Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS)) => error,
            Err(error) => {
                eprintln!("matrix-server: cannot accept connections any more: {error}");
                return error;
            }
        };
        eprintln!("matrix-server: accepting again in {} ms: {error}", pause.as_millis());
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Starts the three threads of a connection. If one cannot be started, the earlier ones end by themselves.
fn open(stream: Descriptor, peer: SocketAddr) -> Result<(), Errno> {
    let _ = system::network::set_option(stream.raw(), socket_option::IPPROTO_TCP, socket_option::TCP_NODELAY, 1);
    let stream = Arc::new(stream);
    let (requests, to_handle) = queue();
    let (answers, to_send) = queue();
    let builder = Builder::new().stack_size(STACK);
    let sending = stream.clone();
    builder.spawn(move || {
        if let Err(error) = send(&sending, &to_send) {
            eprintln!("matrix-server: closing {}: {error}", peer);
            // Ends the receiving thread too: the requests that it waits for could not be answered.
            let _ = system::network::shutdown(sending.raw(), SHUT_RDWR);
        }
    })?;
    builder.spawn(move || handle(&to_handle, &answers))?;
    builder.spawn(move || {
        if let Err(reason) = receive(&stream, &requests) {
            eprintln!("matrix-server: closing {}: {reason}", peer);
        }
    })?;
    Ok(())
}

/// Cuts the stream into requests.
fn receive(stream: &Descriptor, to_handle: &Sender) -> Result<(), Reason> {
    let mut requests = Requests::new(FIRST_BUFFER);
    loop {
        while let Some((_, request)) = requests.take().map_err(Reason::Malformed)? {
            if !to_handle.send(request.to_vec()) {
                return Ok(());
            }
        }
        match system::file::read(stream.raw(), requests.room()).map_err(Reason::Failed)? {
            0 => return requests.finish(),
            count => requests.add(count),
        }
    }
}

/// Multiplies the matrices of requests.
fn handle(requests: &Receiver, answers: &Sender) {
    while let Some(message) = requests.receive() {
        if !answers.send(answer(message)) {
            return;
        }
    }
}

/// Writes the answers.
fn send(stream: &Descriptor, answers: &Receiver) -> Result<(), Errno> {
    while let Some(answer) = answers.receive() {
        let mut done = 0;
        while done < answer.len() {
            done += system::file::write(stream.raw(), &answer[done..])?;
        }
    }
    Ok(())
}
