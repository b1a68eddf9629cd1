//! The model `ktuc-epoll`: coroutines whose calls never wait, and one that waits for all of them.
//!
//! Sockets do not block. A stage tries its call first; if that would wait, the stage waits until the *reactor* reports
//! the socket as ready. The reactor is a coroutine too, less important than all others, so that it runs when no other
//! is ready; it makes one `epoll_pwait` and wakes the stages of all reported sockets. Each socket is registered once,
//! edge-triggered, for both directions.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};

use abi_unix::types::{SHUT_RDWR, control, open, socket_option};
use cops::channel::{Receiver, Sender, bounded};
use cops::system::readiness::{Epoll, Event, event};
use cops::system::{self, Descriptor};
use cops::{Errno, Lock, Priority, eprintln, spawn_at};
use matrix::Requests;

use crate::{FIRST_BUFFER, Options, PAUSE, QUEUE, Reason, answer};

/// Largest number of events taken at once.
const EVENTS: usize = 256;

/// One direction of a socket: its waiter, and whether it has become ready since.
#[derive(Default)]
struct Direction {
    ready: AtomicBool,
    waker: Lock<Option<Waker>>,
}

impl Direction {
    /// Waits until the reactor has found the direction ready since the last time.
    async fn wait(&self) {
        poll_fn(|context| {
            // Acquire: pairs with the reactor's release.
            if self.ready.swap(false, Ordering::Acquire) {
                return Poll::Ready(());
            }
            *self.waker.lock() = Some(context.waker().clone());
            // It may have become ready before the waker was registered.
            if self.ready.swap(false, Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A socket that does not block.
struct Socket {
    descriptor: Descriptor,
    number: usize,
    reactor: Arc<Reactor>,
    input: Direction,
    output: Direction,
}

/// The coroutine that waits for all sockets.
struct Reactor {
    epoll: Epoll,
    sockets: Lock<Sockets>,
}

/// Sockets by the number that comes with an event, and free numbers.
type Sockets = (Vec<Option<Arc<Socket>>>, Vec<usize>);

impl Reactor {
    fn register(self: &Arc<Reactor>, descriptor: Descriptor) -> Result<Arc<Socket>, Errno> {
        let socket = {
            let mut sockets = self.sockets.lock();
            let number = sockets.1.pop().unwrap_or(sockets.0.len());
            let socket = Arc::new(Socket {
                descriptor,
                number,
                reactor: self.clone(),
                input: Direction::default(),
                output: Direction::default(),
            });
            if number == sockets.0.len() {
                sockets.0.push(None);
            }
            sockets.0[number] = Some(socket.clone());
            socket
        };
        let events = event::IN | event::OUT | event::RDHUP | event::ET;
        match self.epoll.add(socket.descriptor.raw(), events, socket.number as u64) {
            Ok(()) => Ok(socket),
            Err(error) => {
                socket.forget();
                Err(error)
            }
        }
    }

    /// Waits for events and wakes their stages, for ever.
    async fn run(self: Arc<Reactor>, retry: Arc<AtomicBool>, listener: Arc<Socket>) {
        let mut events = alloc::vec![Event::default(); EVENTS];
        loop {
            // If accepting has failed for lack of a resource, it is tried again after a while, without an event.
            let timeout = if retry.load(Ordering::Relaxed) { PAUSE.0.as_millis() as i32 } else { -1 };
            let count = self.epoll.wait(&mut events, timeout).unwrap_or(0);
            if retry.swap(false, Ordering::Relaxed) {
                listener.input.set_ready();
            }
            for found in &events[..count] {
                let socket = self.sockets.lock().0.get(found.data as usize).cloned().flatten();
                let Some(socket) = socket else { continue };
                let ends = event::HUP | event::ERR;
                if found.events & (event::IN | event::RDHUP | ends) != 0 {
                    socket.input.set_ready();
                }
                if found.events & (event::OUT | ends) != 0 {
                    socket.output.set_ready();
                }
            }
            cops::yield_now().await;
        }
    }
}

impl Socket {
    async fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        loop {
            match system::file::read(self.descriptor.raw(), buffer) {
                Err(Errno::EAGAIN) => self.input.wait().await,
                other => return other,
            }
        }
    }

    async fn write_all(&self, bytes: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            match system::file::write(self.descriptor.raw(), &bytes[done..]) {
                Err(Errno::EAGAIN) => self.output.wait().await,
                other => done += other?,
            }
        }
        Ok(())
    }

    /// Removes the socket from the reactor, so that it is closed when its stages are done with it.
    fn forget(&self) {
        let mut sockets = self.reactor.sockets.lock();
        let own = sockets.0[self.number].take();
        sockets.1.push(self.number);
        drop(sockets);
        drop(own);
    }
}

/// Accepts connections for ever. Returns only if the listening socket itself fails.
pub async fn serve(listener: Descriptor, options: &Options) -> Result<(), Errno> {
    let reactor = Arc::new(Reactor { epoll: Epoll::new()?, sockets: Lock::new((Vec::new(), Vec::new())) });
    do_not_block(&listener)?;
    let listener = reactor.register(listener)?;
    let retry = Arc::new(AtomicBool::new(false));
    spawn_at(Priority::LOWEST, reactor.clone().run(retry.clone(), listener.clone())).detach();
    let connections = Cell::new(0u64);
    loop {
        match system::network::accept(listener.descriptor.raw()) {
            Ok((stream, _)) => {
                let opened = do_not_block(&stream).and_then(|()| reactor.register(stream));
                match opened {
                    Ok(socket) => open_connection(socket, options.priority_of(connections.get())),
                    Err(error) => eprintln!("matrix-server: closing a connection: {error}"),
                }
                connections.set(connections.get() + 1);
            }
            Err(Errno::EAGAIN) => listener.input.wait().await,
            Err(error @ (Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS)) => {
                eprintln!("matrix-server: accepting again later: {error}");
                retry.store(true, Ordering::Relaxed);
                listener.input.wait().await;
            }
            Err(Errno::ECONNABORTED | Errno::EINTR) => {}
            Err(error) => {
                eprintln!("matrix-server: cannot accept connections any more: {error}");
                return Err(error);
            }
        }
    }
}

fn do_not_block(descriptor: &Descriptor) -> Result<(), Errno> {
    // SAFETY: the call has no pointers.
    unsafe { system::call!(FileControl, descriptor.raw(), control::SETFL, open::NONBLOCK) }.map(drop)
}

/// Starts the three coroutines of a connection.
fn open_connection(socket: Arc<Socket>, priority: Priority) {
    let raw = socket.descriptor.raw();
    let _ = system::network::set_option(raw, socket_option::IPPROTO_TCP, socket_option::TCP_NODELAY, 1);
    let (requests, to_handle) = bounded(QUEUE);
    let (answers, to_send) = bounded(QUEUE);
    let receiving = socket.clone();
    spawn_at(priority, async move {
        if let Err(reason) = receive(&receiving, requests).await {
            eprintln!("matrix-server: closing a connection: {reason}");
        }
    })
    .detach();
    spawn_at(priority, handle(to_handle, answers)).detach();
    spawn_at(priority, async move {
        if let Err(error) = send(&socket, to_send).await {
            eprintln!("matrix-server: closing a connection: {error}");
            // Ends the receiving coroutine too: the requests that it waits for could not be answered.
            let _ = system::network::shutdown(socket.descriptor.raw(), SHUT_RDWR);
        }
        // The last stage: it ends when the others have.
        socket.forget();
    })
    .detach();
}

/// Cuts the stream into requests.
async fn receive(socket: &Socket, to_handle: Sender<Vec<u8>>) -> Result<(), Reason> {
    let mut requests = Requests::new(FIRST_BUFFER);
    loop {
        while let Some((_, request)) = requests.take().map_err(Reason::Malformed)? {
            if to_handle.send(request.to_vec()).await.is_err() {
                return Ok(());
            }
        }
        match socket.read(requests.room()).await.map_err(Reason::Failed)? {
            0 => return requests.finish(),
            count => requests.add(count),
        }
    }
}

/// Multiplies the matrices of requests.
async fn handle(requests: Receiver<Vec<u8>>, answers: Sender<Vec<u8>>) {
    while let Some(message) = requests.receive().await {
        if answers.send(answer(message)).await.is_err() {
            return;
        }
    }
}

/// Writes the answers.
async fn send(socket: &Socket, answers: Receiver<Vec<u8>>) -> Result<(), Errno> {
    while let Some(answer) = answers.receive().await {
        socket.write_all(&answer).await?;
    }
    Ok(())
}
