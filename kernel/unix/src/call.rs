//! The dispatcher: from registers to a decoded call, and from its result back to registers.
//!
//! Decoding can fail and changes nothing. What a process passes is taken as an allegation: numbers are checked before they
//! become lengths or indexes, addresses stay [`UserBuffer`]s until the address space has been asked.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::task::Poll;

use abi_queue::Priority;
use abi_unix::call::{ASYNCHRONOUS, NUMBER_MASK, PRIORITY_SHIFT};
use abi_unix::types::{self, SocketAddress, TimeSpec};
use abi_unix::{Counter, Errno, SystemCall, WILL_BE_POSTED, errno};
use hal_api::UserContext;

use crate::file::OpenFile;
use crate::operation::{AddressOut, Buffers, Operation};
use crate::process::{self, Children, Ending, Process};
use crate::program::Plan;
use crate::user::{USER_END, UserBuffer};
use crate::worker::Worker;
use crate::{counters, files, memory_calls, operation, program, time};

/// What becomes of a call.
#[allow(missing_docs)]
pub enum Outcome {
    /// It is done: this goes to `a0`.
    Done(usize),
    /// It is done, and has set the registers itself.
    Unchanged,
    /// The worker must wait.
    Wait(Operation),
    /// The worker has nothing to run.
    Park { seen: u64, deadline: Option<u64> },
    /// The process goes on with another program.
    Execute(Box<Plan>),
    /// The worker lets others run.
    GiveWay,
    /// The worker ends.
    Leave,
}

/// A decoded call: done, or still to be attempted.
enum Decoded {
    Value(usize),
    Operation(Operation),
    Other(Outcome),
}

impl From<usize> for Decoded {
    fn from(value: usize) -> Decoded {
        Decoded::Value(value)
    }
}

/// Deals with the system call in these registers.
pub fn dispatch(worker: &Arc<Worker>, context: &mut UserContext) -> Outcome {
    counters::count(Counter::SystemCalls);
    let register = context.call_number() as usize;
    let arguments = context.arguments().map(|argument| argument as usize);
    let Some(call) = SystemCall::from_number(register & NUMBER_MASK) else {
        return Outcome::Done(errno::encode(Err(Errno::ENOSYS)));
    };
    let mut operation = match decode(worker, call, arguments, context) {
        Ok(Decoded::Value(value)) => return Outcome::Done(value),
        Ok(Decoded::Other(outcome)) => return outcome,
        Err(error) => return Outcome::Done(errno::encode(Err(error))),
        Ok(Decoded::Operation(operation)) => operation,
    };
    match operation.attempt(&worker.process) {
        Poll::Ready(result) => Outcome::Done(errno::encode(result)),
        Poll::Pending if register & ASYNCHRONOUS == 0 => match require_memory() {
            Ok(()) => Outcome::Wait(operation),
            // What was moved already is the result.
            Err(error) => Outcome::Done(errno::encode(operation.give_up(error))),
        },
        Poll::Pending => {
            let priority = Priority::saturating((register >> PRIORITY_SHIFT) as u64 & 63);
            let (cid, token) = (context.register(16), context.register(5));
            let submitted = require_memory()
                .and_then(|()| operation::go_on_asynchronously(&worker.process, operation, token, cid, priority));
            match submitted {
                Ok(()) => Outcome::Done(WILL_BE_POSTED),
                Err(error) => Outcome::Done(errno::encode(Err(error))),
            }
        }
    }
}

/// Kernel memory that must be free before a call may create something: what any one call allocates is far below.
const RESERVE: usize = 512 * 1024;

/// ADMISSION: calls that make the kernel allocate start only while a reserve is free, so that a process that has used up
/// the kernel's memory gets `ENOMEM`, and the small allocations inside the kernel do not fail.
pub fn require_memory() -> Result<(), Errno> {
    if memory::heap::is_available(RESERVE) { Ok(()) } else { Err(Errno::ENOMEM) }
}

fn decode(
    worker: &Arc<Worker>,
    call: SystemCall,
    [a0, a1, a2, a3, a4, a5]: [usize; 6],
    context: &mut UserContext,
) -> Result<Decoded, Errno> {
    let process = &worker.process;
    use SystemCall::*;
    Ok(match call {
        Read => Operation::Read { file: file(process, a0)?, buffers: one(a1, a2)? }.into(),
        Write => Operation::Write { file: file(process, a0)?, buffers: one(a1, a2)?, written: 0 }.into(),
        ReadVector => Operation::Read { file: file(process, a0)?, buffers: vector(process, a1, a2)? }.into(),
        WriteVector => {
            Operation::Write { file: file(process, a0)?, buffers: vector(process, a1, a2)?, written: 0 }.into()
        }
        ReadAt => file(process, a0)?.read_at(process, UserBuffer::new(a1, a2)?, offset(a3)?)?.into(),
        WriteAt => {
            require_memory()?;
            file(process, a0)?.write_at(process, UserBuffer::new(a1, a2)?, offset(a3)?)?.into()
        }
        GetProcess => (process.id as usize).into(),
        GetParent => (process.parent() as usize).into(),
        GetThread | SetThreadIdAddress => (worker.thread_id() as usize).into(),
        GetUser | GetEffectiveUser | GetGroup | GetEffectiveGroup => 0.into(),
        Yield => Decoded::Other(Outcome::GiveWay),

        // Workers.
        WorkerWait => {
            let deadline = match a1 {
                usize::MAX => None,
                ns => Some(time::ticks_at_ns(time::now_ns().saturating_add(ns as u64))),
            };
            Decoded::Other(Outcome::Park { seen: a0 as u64, deadline })
        }
        WorkerWake => {
            process.worker(a0).ok_or(Errno::ESRCH)?.wake();
            0.into()
        }
        WorkerCreate => {
            require_memory()?;
            if a0 >= USER_END || a1 >= USER_END || a0 % 2 != 0 {
                return Err(Errno::EINVAL);
            }
            let mut fresh = Box::new(UserContext::new(a0 as u64, a1 as u64));
            fresh.set_register(10, a2 as u64);
            fresh.set_register(4, a3 as u64);
            Worker::start(process, fresh)?.index().into()
        }
        Cancel => {
            process.cancel_call(a0 as u64)?;
            0.into()
        }
        Exit => Decoded::Other({
            if process.live_workers() == 1 {
                process.end(Ending::Exited(a0 as u8));
            }
            Outcome::Leave
        }),
        ExitGroup => {
            process.end(Ending::Exited(a0 as u8));
            Decoded::Other(Outcome::Leave)
        }
        InterruptHandler => {
            if a0 >= USER_END || !a0.is_multiple_of(2) {
                return Err(Errno::EINVAL);
            }
            worker.set_interrupt_handler(a0);
            0.into()
        }
        InterruptReturn => {
            worker.return_from_interrupt(context)?;
            Decoded::Other(Outcome::Unchanged)
        }

        // Processes.
        Spawn => {
            require_memory()?;
            program::spawn(process, a0, a1, a2, a3, a4)?.into()
        }
        Execute => {
            require_memory()?;
            Decoded::Other(Outcome::Execute(Box::new(Plan::read(process, a0, a1, a2)?)))
        }
        Wait => {
            let which = match a0 as i32 {
                -1 => Children::Any,
                id if id > 0 => Children::One(id as u32),
                // There are no process groups.
                _ => return Err(Errno::ECHILD),
            };
            if a2 as u32 & !types::WNOHANG != 0 {
                return Err(Errno::EINVAL);
            }
            Operation::WaitChild { which, status: a1, no_wait: a2 as u32 & types::WNOHANG != 0 }.into()
        }
        Kill => kill(process, a0 as i32, a1 as u32)?.into(),
        Reboot => reboot(a0 as u32, a1 as u32, a2 as u32)?.into(),

        // Time.
        Sleep => sleep(process, types::clock::MONOTONIC, 0, a0)?.into(),
        SleepOn => sleep(process, a0 as u32, a1 as u32, a2)?.into(),
        GetTime => {
            let ns = match a0 as u32 {
                types::clock::REALTIME => time::now_ns() + time::epoch_ns(),
                types::clock::MONOTONIC | types::clock::MONOTONIC_RAW | types::clock::BOOTTIME => time::now_ns(),
                _ => return Err(Errno::EINVAL),
            };
            process.copy_out(a1, &TimeSpec::from_ns(ns).to_bytes())?;
            0.into()
        }
        GetResolution => {
            match a0 as u32 {
                types::clock::REALTIME
                | types::clock::MONOTONIC
                | types::clock::MONOTONIC_RAW
                | types::clock::BOOTTIME => {}
                _ => return Err(Errno::EINVAL),
            }
            if a1 != 0 {
                let ns = 1_000_000_000u64.div_ceil(time::ticks_per_second());
                process.copy_out(a1, &TimeSpec::from_ns(ns).to_bytes())?;
            }
            0.into()
        }

        // Memory.
        Break => memory_calls::set_break(process, a0).into(),
        Map => {
            require_memory()?;
            memory_calls::map(process, a0, a1, a2 as u32, a3 as u32, a4, a5)?.into()
        }
        Unmap => memory_calls::unmap(process, a0, a1)?.into(),
        Protect => memory_calls::protect(process, a0, a1, a2 as u32)?.into(),

        // Files and descriptors.
        Open => {
            require_memory()?;
            files::open(process, a0 as i32, a1, a2 as u32, a3 as u32)?.into()
        }
        Close => {
            let file = process.descriptors.lock().remove(descriptor(a0)?)?;
            drop(file);
            0.into()
        }
        Pipe => {
            require_memory()?;
            files::pipe(process, a0, a1 as u32)?.into()
        }
        Duplicate => {
            let mut descriptors = process.descriptors.lock();
            let file = descriptors.get(descriptor(a0)?)?.clone();
            descriptors.add(file, false, 0)?.into()
        }
        DuplicateTo => files::duplicate_to(process, descriptor(a0)?, descriptor(a1)?, a2 as u32)?.into(),
        FileControl => files::control(process, descriptor(a0)?, a1 as u32, a2)?.into(),
        DeviceControl => file(process, a0)?.device_control(process, a1 as u32, a2)?.into(),
        GetCurrentDirectory => files::current_directory(process, a0, a1)?.into(),
        ChangeDirectory => files::change_directory(process, a0)?.into(),
        MakeDirectory => {
            require_memory()?;
            files::make_directory(process, a0 as i32, a1, a2 as u32)?.into()
        }
        Unlink => files::unlink(process, a0 as i32, a1, a2 as u32)?.into(),
        SymbolicLink => {
            require_memory()?;
            files::symbolic_link(process, a0, a1 as i32, a2)?.into()
        }
        Link => {
            require_memory()?;
            files::link(process, a0 as i32, a1, a2 as i32, a3, a4 as u32)?.into()
        }
        Rename => {
            require_memory()?;
            files::rename(process, a0 as i32, a1, a2 as i32, a3, a4 as u32)?.into()
        }
        ReadLink => files::read_link(process, a0 as i32, a1, a2, a3)?.into(),
        Access => files::access(process, a0 as i32, a1, a2 as u32)?.into(),
        StatusAt => files::status_at(process, a0 as i32, a1, a2, a3 as u32)?.into(),
        Status => files::status(process, descriptor(a0)?, a1)?.into(),
        Truncate => {
            require_memory()?;
            file(process, a0)?.truncate(offset(a1)?)?.into()
        }
        Seek => file(process, a0)?.seek(a1 as i64, a2 as u32)?.into(),
        ReadDirectory => file(process, a0)?.read_directory(process, UserBuffer::new(a1, a2)?)?.into(),

        // Sockets.
        SystemCall::Socket => {
            require_memory()?;
            crate::file::Socket::create(process, a0 as u32, a1 as u32, a2 as u32)?.into()
        }
        Bind => file(process, a0)?.socket()?.bind(address_in(process, a1, a2)?.ok_or(Errno::EAFNOSUPPORT)?)?.into(),
        Listen => {
            require_memory()?;
            file(process, a0)?.socket()?.listen(a1 as u32 as i32)?.into()
        }
        Accept => accept(process, a0, a1, a2, 0)?.into(),
        AcceptWith => accept(process, a0, a1, a2, a3 as u32)?.into(),
        Connect => {
            require_memory()?;
            let file = file(process, a0)?;
            file.socket()?;
            match address_in(process, a1, a2)? {
                Some(address) => Operation::Connect { file, address, started: false }.into(),
                None => file.socket()?.dissolve()?.into(),
            }
        }
        GetSocketName => {
            let address = file(process, a0)?.socket()?.local_address()?;
            AddressOut { address: a1, size: a2 }.write(process, address)?;
            0.into()
        }
        GetPeerName => {
            let address = file(process, a0)?.socket()?.remote_address()?;
            AddressOut { address: a1, size: a2 }.write(process, address)?;
            0.into()
        }
        SendTo => {
            let file = file(process, a0)?;
            file.socket()?;
            let address = if a4 == 0 { None } else { Some(address_in(process, a4, a5)?.ok_or(Errno::EAFNOSUPPORT)?) };
            Operation::Send { file, buffer: UserBuffer::new(a1, a2)?, flags: a3 as u32, address, sent: 0 }.into()
        }
        ReceiveFrom => {
            let file = file(process, a0)?;
            file.socket()?;
            let address = if a4 == 0 { None } else { Some(AddressOut { address: a4, size: a5 }) };
            Operation::Receive { file, buffer: UserBuffer::new(a1, a2)?, flags: a3 as u32, address }.into()
        }
        SetSocketOption => {
            let file = file(process, a0)?;
            file.socket()?.set_option(process, a1 as u32, a2 as u32, UserBuffer::new(a3, a4)?)?.into()
        }
        GetSocketOption => {
            let file = file(process, a0)?;
            file.socket()?.get_option(process, a1 as u32, a2 as u32, a3, a4)?.into()
        }
        Shutdown => file(process, a0)?.socket()?.shutdown(a1 as u32)?.into(),

        // The system.
        SystemName => {
            process.copy_out(a0, &crate::system_name())?;
            0.into()
        }
        GetRandom => crate::random::fill(process, UserBuffer::new(a0, a1)?, a2 as u32)?.into(),
        Counters => {
            let buffer = UserBuffer::new(a0, a1)?;
            for (position, &counter) in Counter::ALL.iter().enumerate().take(buffer.len() / 8) {
                process.copy_out(a0 + position * 8, &counters::read(counter).to_le_bytes())?;
            }
            Counter::ALL.len().into()
        }
        Log => {
            let buffer = UserBuffer::new(a0, a1.min(256))?;
            let mut line = [0; 256];
            process.copy_in(a0, &mut line[..buffer.len()])?;
            platform::println!("[{}] {}", process.id, line[..buffer.len()].escape_ascii());
            buffer.len().into()
        }
    })
}

impl From<Operation> for Decoded {
    fn from(operation: Operation) -> Decoded {
        Decoded::Operation(operation)
    }
}

/// A register as a descriptor. Only the lower half counts, as a C `int`.
fn descriptor(register: usize) -> Result<usize, Errno> {
    usize::try_from(register as i32).map_err(|_| Errno::EBADF)
}

fn file(process: &Process, register: usize) -> Result<Arc<OpenFile>, Errno> {
    Ok(process.descriptors.lock().get(descriptor(register)?)?.clone())
}

fn offset(register: usize) -> Result<u64, Errno> {
    if (register as i64) < 0 { Err(Errno::EINVAL) } else { Ok(register as u64) }
}

fn one(address: usize, length: usize) -> Result<Buffers, Errno> {
    if (length as isize) < 0 {
        return Err(Errno::EINVAL);
    }
    let mut buffers = Buffers::new();
    buffers.push(UserBuffer::new(address, length)?);
    Ok(buffers)
}

/// Buffers of a vector call (`struct iovec`, at most `IOV_MAX` = 1,024).
fn vector(process: &Process, address: usize, count: usize) -> Result<Buffers, Errno> {
    if count > 1024 {
        return Err(Errno::EINVAL);
    }
    let mut buffers = Buffers::new();
    buffers.try_reserve(count).map_err(|_| Errno::ENOMEM)?;
    let mut total = 0usize;
    for position in 0..count {
        let mut bytes = [0; 16];
        process.copy_in(address.checked_add(position * 16).ok_or(Errno::EFAULT)?, &mut bytes)?;
        let word = |at: usize| usize::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        let (base, length) = (word(0), word(8));
        if (length as isize) < 0 {
            return Err(Errno::EINVAL);
        }
        let length = length.min(crate::user::LARGEST_TRANSFER - total);
        total += length;
        buffers.push(UserBuffer::new(base, length)?);
    }
    Ok(buffers)
}

/// A socket address that a process gives; `None` if its family is `AF_UNSPEC`.
fn address_in(process: &Process, address: usize, size: usize) -> Result<Option<SocketAddress>, Errno> {
    if !(2..=128).contains(&(size as u32 as usize)) {
        return Err(Errno::EINVAL);
    }
    let mut family = [0; 2];
    process.copy_in(address, &mut family)?;
    match u16::from_le_bytes(family) {
        types::AF_UNSPEC => return Ok(None),
        types::AF_INET => {}
        _ => return Err(Errno::EAFNOSUPPORT),
    }
    if (size as u32 as usize) < SocketAddress::SIZE {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; SocketAddress::SIZE];
    process.copy_in(address, &mut bytes)?;
    SocketAddress::from_bytes(bytes).ok_or(Errno::EAFNOSUPPORT).map(Some)
}

fn accept(process: &Process, descriptor: usize, address: usize, size: usize, flags: u32) -> Result<Operation, Errno> {
    require_memory()?;
    if flags & !(types::SOCK_NONBLOCK | types::SOCK_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let file = file(process, descriptor)?;
    file.socket()?;
    let address = if address == 0 { None } else { Some(AddressOut { address, size }) };
    Ok(Operation::Accept { file, address, flags })
}

fn sleep(process: &Process, clock: u32, flags: u32, address: usize) -> Result<Operation, Errno> {
    let ns = operation::read_time(process, address)?;
    if flags & !types::clock::TIMER_ABSTIME != 0 {
        return Err(Errno::EINVAL);
    }
    let absolute = flags & types::clock::TIMER_ABSTIME != 0;
    let monotonic_ns = match clock {
        types::clock::REALTIME if absolute => ns.saturating_sub(time::epoch_ns()),
        types::clock::REALTIME | types::clock::MONOTONIC | types::clock::BOOTTIME if !absolute => {
            time::now_ns().saturating_add(ns)
        }
        types::clock::MONOTONIC | types::clock::BOOTTIME => ns,
        _ => return Err(Errno::EINVAL),
    };
    Ok(Operation::Sleep { deadline: time::ticks_at_ns(monotonic_ns), alarm: None })
}

fn kill(caller: &Process, target: i32, signal: u32) -> Result<usize, Errno> {
    if signal >= types::signal::LIMIT {
        return Err(Errno::EINVAL);
    }
    // There are no process groups: 0 means the caller, and negative numbers mean nobody.
    let id = match target {
        0 => caller.id,
        id if id > 0 => id as u32,
        _ => return Err(Errno::ESRCH),
    };
    let Some(process) = process::find(id) else {
        return if process::exists(id) { Ok(0) } else { Err(Errno::ESRCH) };
    };
    match signal {
        0 | types::signal::CHLD | types::signal::CONT | types::signal::URG | types::signal::WINCH => Ok(0),
        _ if id == process::FIRST && caller.id != process::FIRST => Err(Errno::EPERM),
        _ => {
            process.end(Ending::Killed(signal as u8));
            Ok(0)
        }
    }
}

fn reboot(magic: u32, magic2: u32, command: u32) -> Result<usize, Errno> {
    if magic != types::reboot::MAGIC1 || magic2 != types::reboot::MAGIC2 {
        return Err(Errno::EINVAL);
    }
    match command {
        types::reboot::POWER_OFF | types::reboot::HALT | types::reboot::RESTART => crate::power_off(Ending::Exited(0)),
        _ => Err(Errno::EINVAL),
    }
}
