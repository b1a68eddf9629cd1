//! The service for one program: its sockets, and a future for each of its requests.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::{Ready, ready};
use core::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use core::pin::Pin;
use core::task::{Context, Poll};

use network::{Coalescing, ConnectionId, Error, Interest, ListenerId, Received, Sent, Sharing, TcpOptions};
use sel4::SharedMemory;
use sel4::channel::Message;
use sockets::protocol::{Operation, Status};
use spin::Mutex;

use crate::{Network, now_ns};

/// Sockets of one program.
const SOCKETS: usize = 1024;

/// A socket of a program.
#[derive(Clone, Copy)]
enum Socket {
    Listener(ListenerId),
    Connection(ConnectionId),
}

/// The sockets of one program. The number of a socket is its place, and how often the place was used.
#[derive(Default)]
struct Table {
    places: Vec<(u32, Option<Socket>)>,
    free: Vec<u32>,
}

impl Table {
    fn insert(&mut self, socket: Socket) -> Option<u64> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.places.len() < SOCKETS => {
                self.places.push((0, None));
                self.places.len() as u32 - 1
            }
            None => return None,
        };
        let (uses, there) = &mut self.places[place as usize];
        *uses += 1;
        *there = Some(socket);
        Some(u64::from(*uses) << 32 | u64::from(place))
    }

    fn get(&self, number: u64) -> Option<Socket> {
        let (uses, socket) = self.places.get(number as u32 as usize)?;
        if u64::from(*uses) == number >> 32 { *socket } else { None }
    }

    fn remove(&mut self, number: u64) -> Option<Socket> {
        self.get(number)?;
        self.free.push(number as u32);
        self.places[number as u32 as usize].1.take()
    }
}

/// One program that is served.
pub struct Customer {
    network: Arc<Network>,
    data: SharedMemory,
    sockets: Mutex<Table>,
}

/// A request on its way to the answer.
pub enum Request {
    /// Answered at once.
    Done(Ready<Message>),
    /// May have to wait.
    Waiting(Waiting),
}

/// A request that waits for the network.
pub struct Waiting {
    customer: Arc<Customer>,
    number: u64,
    what: What,
}

enum What {
    Accept(ListenerId),
    Receive { id: ConnectionId, offset: usize, length: usize },
    Send { id: ConnectionId, offset: usize, length: usize, sent: usize },
}

fn answer(status: Status) -> Message {
    [status as u64, 0, 0, 0, 0, 0, 0]
}

fn status(error: Error) -> Status {
    match error {
        Error::AddressInUse | Error::AddressUnavailable => Status::InUse,
        Error::Limit | Error::OutOfMemory => Status::Limit,
        Error::Stale | Error::Invalid => Status::Invalid,
        _ => Status::Reset,
    }
}

/// Small answers are sent at once; buffers for a request of the largest common size.
const OPTIONS: TcpOptions = TcpOptions { coalescing: Coalescing::None, ..TcpOptions::SMALL };

impl Customer {
    /// Creates the state of a program whose messages point into `data`.
    pub fn new(network: Arc<Network>, data: SharedMemory) -> Arc<Customer> {
        Arc::new(Customer { network, data, sockets: Mutex::default() })
    }

    /// Begins a request.
    pub fn request(self: &Arc<Customer>, message: Message) -> Request {
        let [operation, first, second, third, ..] = message;
        let begun = match Operation::from_number(operation) {
            None => Err(Status::Invalid),
            Some(Operation::Listen) => self.listen(first, second).map(Err),
            Some(Operation::Close) => self.close(first).map(Err),
            Some(operation) => self.wait(operation, first, second, third).map(Ok),
        };
        match begun {
            Ok(Ok(what)) => Request::Waiting(Waiting { customer: self.clone(), number: first, what }),
            Ok(Err(message)) => Request::Done(ready(message)),
            Err(status) => Request::Done(ready(answer(status))),
        }
    }

    fn wait(&self, operation: Operation, number: u64, offset: u64, length: u64) -> Result<What, Status> {
        let socket = self.sockets.lock().get(number).ok_or(Status::Invalid)?;
        let (Ok(offset), Ok(length)) = (usize::try_from(offset), usize::try_from(length)) else {
            return Err(Status::Invalid);
        };
        match (operation, socket) {
            (Operation::Accept, Socket::Listener(id)) => Ok(What::Accept(id)),
            // Checked here, once: the size of the memory does not change.
            (Operation::Receive, Socket::Connection(id)) if self.data.contains(offset, length) => {
                Ok(What::Receive { id, offset, length })
            }
            (Operation::Send, Socket::Connection(id)) if self.data.contains(offset, length) => {
                Ok(What::Send { id, offset, length, sent: 0 })
            }
            _ => Err(Status::Invalid),
        }
    }

    fn listen(&self, port: u64, backlog: u64) -> Result<Message, Status> {
        let port = u16::try_from(port).map_err(|_| Status::Invalid)?;
        let backlog = usize::try_from(backlog).map_err(|_| Status::Invalid)?;
        let mut stack = self.network.stack.lock();
        let address = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
        let binding = stack.tcp_bind(address, Sharing::Exclusive).map_err(status)?;
        let listener = match stack.tcp_listen(binding, backlog, &OPTIONS) {
            Ok(listener) => listener,
            Err(error) => {
                let _ = stack.release(binding);
                return Err(status(error));
            }
        };
        match self.sockets.lock().insert(Socket::Listener(listener)) {
            Some(number) => Ok([Status::Done as u64, number, 0, 0, 0, 0, 0]),
            None => {
                let _ = stack.close_listener(listener, now_ns());
                Err(Status::Limit)
            }
        }
    }

    fn close(&self, number: u64) -> Result<Message, Status> {
        let socket = self.sockets.lock().remove(number).ok_or(Status::Invalid)?;
        self.end(socket);
        Ok(answer(Status::Done))
    }

    fn end(&self, socket: Socket) {
        let mut stack = self.network.stack.lock();
        // A connection that has ended by itself is gone already.
        let _ = match socket {
            Socket::Listener(id) => stack.close_listener(id, now_ns()),
            Socket::Connection(id) => stack.close(id, now_ns()),
        };
        drop(stack);
        self.network.departs();
    }
}

impl Drop for Customer {
    fn drop(&mut self) {
        let places = core::mem::take(&mut self.sockets.get_mut().places);
        places.into_iter().filter_map(|(_, socket)| socket).for_each(|socket| self.end(socket));
    }
}

impl Future for Request {
    type Output = Message;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Message> {
        match self.get_mut() {
            Request::Done(done) => Pin::new(done).poll(context),
            Request::Waiting(waiting) => waiting.advance(context),
        }
    }
}

impl Waiting {
    fn advance(&mut self, context: &mut Context<'_>) -> Poll<Message> {
        // The program may have closed the socket meanwhile, and the stack may have reused its place.
        if self.customer.sockets.lock().get(self.number).is_none() {
            return Poll::Ready(answer(Status::Invalid));
        }
        let result = match &mut self.what {
            What::Accept(id) => accept(&self.customer, *id, context),
            What::Receive { id, offset, length } => receive(&self.customer, *id, *offset, *length, context),
            What::Send { id, offset, length, sent } => send(&self.customer, *id, *offset, *length, sent, context),
        };
        match result {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(message)) => Poll::Ready(message),
            Err(error) => Poll::Ready(answer(status(error))),
        }
    }
}

fn accept(customer: &Customer, id: ListenerId, context: &mut Context<'_>) -> Result<Poll<Message>, Error> {
    let mut stack = customer.network.stack.lock();
    let Some((connection, peer)) = stack.accept(id)? else {
        stack.register_accept(id, context.waker())?;
        return Ok(Poll::Pending);
    };
    drop(stack);
    // Listeners of this server have addresses of IPv4, and so have their peers.
    let IpAddr::V4(address) = peer.ip() else {
        customer.end(Socket::Connection(connection));
        return Ok(Poll::Ready(answer(Status::Invalid)));
    };
    let inserted = customer.sockets.lock().insert(Socket::Connection(connection));
    let Some(number) = inserted else {
        customer.end(Socket::Connection(connection));
        return Ok(Poll::Ready(answer(Status::Limit)));
    };
    let (address, port) = (u64::from(address.to_bits()), u64::from(peer.port()));
    Ok(Poll::Ready([Status::Done as u64, number, address, port, 0, 0, 0]))
}

fn receive(
    customer: &Customer,
    id: ConnectionId,
    offset: usize,
    length: usize,
    context: &mut Context<'_>,
) -> Result<Poll<Message>, Error> {
    let mut stack = customer.network.stack.lock();
    let mut count = 0;
    let take = |bytes: &[u8]| {
        let part = bytes.len().min(length - count);
        if !customer.data.write(offset + count, &bytes[..part]) {
            return 0;
        }
        count += part;
        part
    };
    match stack.tcp_receive_with(id, take, now_ns())? {
        Received::Bytes(count) => {
            drop(stack);
            // There is room now, of which the other side may have to be informed.
            customer.network.departs();
            Ok(Poll::Ready([Status::Done as u64, count as u64, 0, 0, 0, 0, 0]))
        }
        Received::End => Ok(Poll::Ready(answer(Status::Done))),
        Received::Nothing => {
            stack.register(id, Interest::Receive, context.waker())?;
            Ok(Poll::Pending)
        }
    }
}

fn send(
    customer: &Customer,
    id: ConnectionId,
    offset: usize,
    length: usize,
    sent: &mut usize,
    context: &mut Context<'_>,
) -> Result<Poll<Message>, Error> {
    let mut stack = customer.network.stack.lock();
    let mut result = Ok(Poll::Ready(answer(Status::Done)));
    while *sent < length {
        let mut done = *sent;
        let fill = |room: &mut [u8]| {
            let part = room.len().min(length - done);
            if !customer.data.read(offset + done, &mut room[..part]) {
                return 0;
            }
            done += part;
            part
        };
        match stack.tcp_send_with(id, fill, now_ns()) {
            Ok(Sent::Bytes(count)) => *sent += count,
            Ok(Sent::Full) => {
                result = stack.register(id, Interest::Send, context.waker()).map(|()| Poll::Pending);
                break;
            }
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    drop(stack);
    customer.network.departs();
    result
}
