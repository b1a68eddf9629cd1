//! The dispatcher: from registers to a decoded call, and from its result back to registers.
//!
//! Decoding can fail and changes nothing. What a process passes is taken as an allegation: numbers are checked before
//! they become lengths or indexes, addresses stay [`UserBuffer`]s until the address space has been asked.

pub(crate) mod files;
pub(crate) mod mapping;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::pin::Pin;
use core::task::Poll;

use abi_queue::Priority;
use abi_unix::call::{ASYNCHRONOUS, Caller, NUMBER_MASK, PRIORITY_SHIFT};
use abi_unix::types::{self, SocketAddress, TimeSpec};
use abi_unix::{Act, Counter, Errno, SystemCall, WILL_BE_POSTED, errno};
use hal_api::UserContext;
use memory::faults;

use crate::asynchronous::kernel_side::Side;
use crate::asynchronous::operation::{self, AddressOut, Buffers, Operation, length_of};
use crate::asynchronous::{interrupts, ring};
use crate::calls::mapping::Begun;
use crate::files::epoll;
use crate::files::file::{self, OpenFile};
use crate::observing::{counters, report, snapshot, trace};
use crate::process::accounts::MEMORY_OF_A_WAIT;
use crate::process::user::{USER_END, UserBuffer};
use crate::process::worker::Worker;
use crate::process::{self, Children, Ending, Process, authority, futex, limits, program, thread};
use crate::scheduling::{self, steps};
use crate::time;
use crate::time::limit::TimeLimit;

/// What becomes of a call.
#[allow(missing_docs)]
pub(crate) enum Outcome {
    /// It is done: this goes to `a0`.
    Done(usize),
    /// It is done, and has set the registers itself.
    Unchanged,
    /// The worker must wait.
    Wait(Operation),
    /// The worker has nothing to run.
    Park { seen: u64, deadline: Option<u64> },
    /// The process goes on with another program, if it is one: where path, arguments and environment are.
    Execute([usize; 3]),
    /// The worker goes on on a kernel thread, if it does not already.
    MoveToThread,
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

impl Decoded {
    fn begun(call: SystemCall, begun: Begun) -> Decoded {
        match begun {
            Begun::Done(value) => Decoded::Value(value),
            Begun::More(work) => Operation::Long(call, work).into(),
        }
    }
}

/// Deals with the system call in these registers.
// Inlined although it is long: its one caller, the visit to user mode, has saved all registers already.
#[inline(always)]
pub(crate) fn dispatch(worker: &Arc<Worker>, context: &mut UserContext) -> Outcome {
    counters::count(Counter::SystemCalls);
    faults::works_for(worker.process.id);
    let register = context.call_number() as usize;
    let arguments = context.arguments().map(|argument| argument as usize);
    let Some(call) = SystemCall::from_number(register & NUMBER_MASK) else {
        return Outcome::Done(errno::encode(Err(Errno::ENOSYS)));
    };
    let mut operation = match decode(worker, call, arguments, Some(context)) {
        Ok(Decoded::Value(value)) => return Outcome::Done(value),
        Ok(Decoded::Other(outcome)) => return outcome,
        Err(error) => return Outcome::Done(errno::encode(Err(error))),
        Ok(Decoded::Operation(operation)) => operation,
    };
    match operation.attempt(&worker.process) {
        Poll::Ready(result) => Outcome::Done(errno::encode(result)),
        // That needs no memory but what the worker has brought along.
        Poll::Pending if register & ASYNCHRONOUS == 0 => Outcome::Wait(operation),
        Poll::Pending => {
            let priority = Priority::saturating((register >> PRIORITY_SHIFT) as u64 & 63);
            let (cid, token) = (context.register(16), context.register(5));
            let submitted = match worker.process.account.admit() {
                Ok(()) => operation::go_on_asynchronously(&worker.process, operation, token, cid, priority),
                Err(error) => Err((error, operation)),
            };
            match submitted {
                Ok(()) => Outcome::Done(WILL_BE_POSTED),
                // It has begun, and half of it is nothing that a program could understand: the worker waits for the
                // rest.
                Err((_, operation)) if operation.must_be_completed() => Outcome::Wait(operation),
                // What was moved already is the result.
                Err((error, operation)) => Outcome::Done(errno::encode(operation.give_up(error))),
            }
        }
    }
}

/// Makes a call that came through a request ring, for the worker whose ring it is; `None` if its result will be posted.
// Inlined although it is long: its one caller takes many requests, and each would save and load all registers.
#[inline(always)]
pub(crate) fn perform(
    worker: &Arc<Worker>,
    number: usize,
    arguments: [usize; 6],
    token: u64,
    cid: u64,
    priority: Priority,
) -> Option<usize> {
    let Some(call) = SystemCall::from_number(number) else { return Some(errno::encode(Err(Errno::ENOSYS))) };
    faults::works_for(worker.process.id);
    if call.caller() == Caller::Worker {
        return Some(errno::encode(Err(Errno::EOPNOTSUPP)));
    }
    let mut operation = match decode(worker, call, arguments, None) {
        Ok(Decoded::Value(value)) => return Some(value),
        // What only a worker can do has no meaning here.
        Ok(Decoded::Other(_)) => return Some(errno::encode(Err(Errno::EOPNOTSUPP))),
        Err(error) => return Some(errno::encode(Err(error))),
        Ok(Decoded::Operation(operation)) => operation,
    };
    if let Poll::Ready(result) = operation.attempt(&worker.process) {
        return Some(errno::encode(result));
    }
    let submitted = match worker.process.account.admit() {
        Ok(()) => operation::go_on_asynchronously(&worker.process, operation, token, cid, priority),
        Err(error) => Err((error, operation)),
    };
    // What was moved already is the result; or there is nobody who could go on with what must be completed, so it is
    // done here.
    submitted.err().map(|(error, mut operation)| {
        errno::encode(loop {
            if worker.process.has_ended() || !operation.must_be_completed() {
                break operation.give_up(error);
            }
            if let Poll::Ready(result) = operation.poll(&worker.process, None) {
                break result;
            }
        })
    })
}

// Inlined although it is long and has two callers: as a function of its own it makes every trap save all registers.
#[inline(always)]
fn decode(
    worker: &Arc<Worker>,
    call: SystemCall,
    [a0, a1, a2, a3, a4, a5]: [usize; 6],
    // The caller's registers; none if the call came through a ring.
    context: Option<&mut UserContext>,
) -> Result<Decoded, Errno> {
    let process = &worker.process;
    use SystemCall::*;
    Ok(match call {
        Read => Operation::Read { file: file(process, a0)?, buffers: one(a1, a2)?, done: 0 }.into(),
        Write => Operation::Write { file: file(process, a0)?, buffers: one(a1, a2)?, written: 0 }.into(),
        ReadVector => {
            let file = file(process, a0)?;
            file.require_readable()?;
            match vector(process, a1, a2)? {
                // As on Linux, a vector of nothing does not even look whether there is something.
                buffers if length_of(&buffers) == 0 => 0.into(),
                buffers => Operation::Read { file, buffers, done: 0 }.into(),
            }
        }
        WriteVector => {
            let file = file(process, a0)?;
            file.require_writable()?;
            match vector(process, a1, a2)? {
                buffers if length_of(&buffers) == 0 => 0.into(),
                buffers => Operation::Write { file, buffers, written: 0 }.into(),
            }
        }
        ReadAt => {
            let (file, buffer) = (file(process, a0)?, UserBuffer::new(a1, a2)?);
            Operation::ReadAt { file, buffer, offset: offset(a3)?, done: 0 }.into()
        }
        WriteAt => {
            let (file, buffer) = (file(process, a0)?, UserBuffer::new(a1, a2)?);
            Operation::WriteAt { file, buffer, offset: offset(a3)?, done: 0 }.into()
        }
        GetProcess => (process.id as usize).into(),
        GetParent => (process.parent() as usize).into(),
        GetThread => (worker.thread_id() as usize).into(),
        GetUser | GetEffectiveUser | GetGroup | GetEffectiveGroup => 0.into(),
        Yield => Decoded::Other(Outcome::GiveWay),

        KernelSide => {
            process.account.admit()?;
            let side = Side::from_number(a0)?;
            process.kernel_side.choose(process, side)?;
            if side == Side::Coroutines { 0.into() } else { Decoded::Other(Outcome::MoveToThread) }
        }

        // Threads.
        SetThreadIdAddress => {
            worker.set_end_word(a0);
            (worker.thread_id() as usize).into()
        }
        Clone => {
            process.account.admit()?;
            thread::clone(worker, context.ok_or(Errno::EOPNOTSUPP)?, [a0, a1, a2, a3, a4])?.into()
        }
        Futex => match futex::call(process, [a0, a1, a2, a3, a4, a5])? {
            futex::Decoded::Wait(wait) => Operation::Futex(kept(wait)).into(),
            futex::Decoded::Done(count) => count.into(),
            futex::Decoded::More(work) => Operation::Long(call, work).into(),
        },
        SetRobustList => {
            if a1 != types::futex::ROBUST_HEAD {
                return Err(Errno::EINVAL);
            }
            worker.set_robust_list(a0);
            0.into()
        }
        GetRobustList => {
            let head = thread::find(worker, a0 as u32 as usize)?.robust_list();
            process.copy_out(a2, &types::futex::ROBUST_HEAD.to_le_bytes())?;
            process.copy_out(a1, &head.to_le_bytes())?;
            0.into()
        }

        // Workers.
        WorkerWait => {
            let deadline = match a1 {
                usize::MAX => None,
                ns => Some(time::ticks_at_ns(time::now_ns().saturating_add(ns as u64))),
            };
            ring::take_before_sleep(worker);
            Decoded::Other(Outcome::Park { seen: a0 as u64, deadline })
        }
        WorkerWake => {
            process.worker(a0).ok_or(Errno::ESRCH)?.wake();
            0.into()
        }
        WorkerCreate => {
            process.account.admit()?;
            if a0 >= USER_END || a1 >= USER_END || a0 % 2 != 0 {
                return Err(Errno::EINVAL);
            }
            let mut fresh = Box::new(UserContext::new(a0 as u64, a1 as u64));
            fresh.set_register(10, a2 as u64);
            fresh.set_register(4, a3 as u64);
            Worker::start(process, fresh)?.index().into()
        }
        Cancel => {
            let mut cancelled = process.cancel_call(a0 as u64);
            if cancelled == Err(Errno::ENOENT) && context.is_some() {
                // It may still be in a ring. (A request that comes through one finds those before it taken.)
                ring::take_everything(worker);
                cancelled = process.cancel_call(a0 as u64);
            }
            cancelled?;
            0.into()
        }
        Exit => Decoded::Other({
            process.note_exit(worker.index(), a0 as u8);
            Outcome::Leave
        }),
        ExitGroup => {
            process.end(Ending::Exited(a0 as u8));
            Decoded::Other(Outcome::Leave)
        }
        InterruptHandler if worker.is_thread() => return Err(Errno::EINVAL),
        InterruptHandler => {
            if a0 >= USER_END || !a0.is_multiple_of(2) {
                return Err(Errno::EINVAL);
            }
            worker.line.set_handler(a0);
            0.into()
        }
        InterruptReturn => {
            worker.line.return_to_interrupted(process, context.ok_or(Errno::EOPNOTSUPP)?)?;
            Decoded::Other(Outcome::Unchanged)
        }
        InterruptLeave => worker.line.leave_handler()?.into(),
        // Threads have no word in the process page to be shown anything in.
        InterruptReceiver if worker.is_thread() => return Err(Errno::EINVAL),
        InterruptReceiver => {
            process.account.admit()?;
            interrupts::create(worker, a0)?.into()
        }
        InterruptGrant => {
            process.account.admit()?;
            interrupts::grant(process, file(process, a0)?.as_interrupt_receiver()?, a1)?.into()
        }
        InterruptOpen => {
            process.account.admit()?;
            interrupts::open(process, a0, a1)?.into()
        }
        InterruptSend => {
            file(process, a0)?.as_interrupt_right()?.send()?;
            0.into()
        }
        InterruptPage => {
            process.account.admit()?;
            interrupts::page(process, file(process, a0)?.as_interrupt_right()?)?.into()
        }
        InterruptRevoke => {
            let file = file(process, a0)?;
            match file.as_interrupt_receiver() {
                Ok(receiver) => interrupts::revoke_all(process, receiver)?,
                Err(_) => interrupts::revoke(process, file.as_interrupt_right()?)?,
            }
            0.into()
        }
        RingSetup => {
            process.account.admit()?;
            ring::set_up(worker, a0, a1)?.into()
        }
        RingEnter => ring::enter(worker, a0, a1)?.into(),

        // Processes.
        Spawn => {
            process.account.admit()?;
            Operation::Long(call, admitted(program::spawn(process.clone(), a0, a1, a2, a3, a4))).into()
        }
        Execute => {
            process.account.admit()?;
            Decoded::Other(Outcome::Execute([a0, a1, a2]))
        }
        Wait => {
            let which = match a0 as i32 {
                -1 => Children::Any,
                0 => Children::Group(process.group()),
                id if id > 0 => Children::One(id as u32),
                group => Children::Group(group.unsigned_abs()),
            };
            if a2 as u32 & !types::WNOHANG != 0 {
                return Err(Errno::EINVAL);
            }
            let (parent, no_wait) = (process.id, a2 as u32 & types::WNOHANG != 0);
            Operation::WaitChild { parent, which, status: a1, no_wait, usage: a3 }.into()
        }
        Kill => kill(process, a0 as i32, a1 as u32)?,
        SetProcessGroup => {
            process::set_group(process, a0 as i32, a1 as i32)?;
            0.into()
        }
        GetProcessGroup => match a0 as i32 {
            0 => process.group() as usize,
            id => process::find(u32::try_from(id).map_err(|_| Errno::ESRCH)?).ok_or(Errno::ESRCH)?.group() as usize,
        }
        .into(),
        Reboot => reboot(process, a0 as u32, a1 as u32, a2 as u32)?.into(),
        GetCapabilities => authority::get(process, a0, a1)?.into(),
        SetCapabilities => authority::set(process, a0, a1)?.into(),

        // Time.
        Sleep => sleep(process, types::clock::MONOTONIC, 0, a0)?.into(),
        SleepOn => sleep(process, a0 as u32, a1 as u32, a2)?.into(),
        GetTime => {
            let ns = match a0 as u32 {
                types::clock::REALTIME => time::now_ns() + time::epoch_ns(),
                types::clock::MONOTONIC | types::clock::MONOTONIC_RAW | types::clock::BOOTTIME => time::now_ns(),
                types::clock::PROCESS_CPUTIME => time::ns_at_ticks(process.cpu_ticks()),
                types::clock::THREAD_CPUTIME => time::ns_at_ticks(worker.cpu_ticks()),
                _ => return Err(Errno::EINVAL),
            };
            process.copy_out(a1, &TimeSpec::from_ns(ns).to_bytes())?;
            0.into()
        }
        Times => {
            let (own, children) = (process.cpu_ticks(), process.children_ticks());
            let times = types::usage::times(time::ns_at_ticks(own), time::ns_at_ticks(children));
            if a0 != 0 {
                process.copy_out(a0, &times)?;
            }
            ((time::now_ns() / types::usage::NS_IN_A_TICK) as usize).into()
        }
        GetUsage => {
            let ticks = match a0 as i32 {
                types::usage::PROCESS => process.cpu_ticks(),
                types::usage::CHILDREN => process.children_ticks(),
                types::usage::WORKER => worker.cpu_ticks(),
                _ => return Err(Errno::EINVAL),
            };
            process.copy_out(a1, &types::usage::of_time(time::ns_at_ticks(ticks)))?;
            0.into()
        }
        ProcessLimit => limits::call(process, a0, a1 as u32, a2, a3)?.into(),
        GetResolution => {
            match a0 as u32 {
                types::clock::REALTIME
                | types::clock::PROCESS_CPUTIME
                | types::clock::THREAD_CPUTIME
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
        Break => Decoded::begun(call, mapping::set_break(process, a0)),
        Map => {
            process.account.admit()?;
            Decoded::begun(call, mapping::map(process, a0, a1, a2 as u32, a3 as u32, a4, a5)?)
        }
        Unmap => Decoded::begun(call, mapping::unmap(process, a0, a1)?),
        Protect => Decoded::begun(call, mapping::protect(process, a0, a1, a2 as u32)?),

        // Files and descriptors.
        Open => {
            process.account.admit()?;
            settled(process, call, files::open(process, a0 as i32, a1, a2 as u32, a3 as u32)?)
        }
        Close => {
            let file = process.descriptors.lock().remove(descriptor(a0)?)?;
            drop(file);
            settled(process, call, 0)
        }
        Pipe => {
            process.account.admit()?;
            files::pipe(process, a0, a1 as u32)?.into()
        }
        Duplicate => {
            let mut descriptors = process.descriptors.lock();
            let file = descriptors.get(descriptor(a0)?)?.clone();
            descriptors.add(file, false, 0)?.into()
        }
        DuplicateTo => {
            settled(process, call, files::duplicate_to(process, descriptor(a0)?, descriptor(a1)?, a2 as u32)?)
        }
        FileControl => files::control(process, descriptor(a0)?, a1 as u32, a2)?.into(),
        DeviceControl => file(process, a0)?.device_control(process, a1 as u32, a2)?.into(),
        GetCurrentDirectory => files::current_directory(process, a0, a1)?.into(),
        ChangeDirectory => files::change_directory(process, a0)?.into(),
        MakeDirectory => {
            process.account.admit()?;
            files::make_directory(process, a0 as i32, a1, a2 as u32)?.into()
        }
        Unlink => settled(process, call, files::unlink(process, a0 as i32, a1, a2 as u32)?),
        SymbolicLink => {
            process.account.admit()?;
            files::symbolic_link(process, a0, a1 as i32, a2)?.into()
        }
        Link => {
            process.account.admit()?;
            files::link(process, a0 as i32, a1, a2 as i32, a3, a4 as u32)?.into()
        }
        Rename => {
            process.account.admit()?;
            settled(process, call, files::rename(process, a0 as i32, a1, a2 as i32, a3, a4 as u32)?)
        }
        ReadLink => files::read_link(process, a0 as i32, a1, a2, a3)?.into(),
        Access => files::access(process, a0 as i32, a1, a2 as u32)?.into(),
        StatusAt => files::status_at(process, a0 as i32, a1, a2, a3 as u32)?.into(),
        Status => files::status(process, descriptor(a0)?, a1)?.into(),
        Truncate => {
            let length = offset(a1)?;
            let file = file(process, a0)?;
            // One that becomes shorter gives memory back, and needs none.
            if file.length().is_some_and(|now| length > now) {
                process.account.admit()?;
            }
            settled(process, call, file.truncate(length)?)
        }
        Seek => file(process, a0)?.seek(a1 as i64, a2 as u32)?.into(),
        ReadDirectory => file(process, a0)?.read_directory(process, UserBuffer::new(a1, a2)?)?.into(),

        // Readiness.
        EventCounter => {
            process.account.admit()?;
            let flags = a1 as u32;
            if flags & !(types::EFD_SEMAPHORE | types::open::NONBLOCK | types::open::CLOEXEC) != 0 {
                return Err(Errno::EINVAL);
            }
            let charge = file::charge(&process.account)?;
            let counter = epoll::EventCounter::new(a0 as u32 as u64, flags & types::EFD_SEMAPHORE != 0);
            let file = Arc::new(OpenFile::of_event_counter(counter, flags & types::open::NONBLOCK != 0, charge));
            process.descriptors.lock().add(file, flags & types::open::CLOEXEC != 0, 0)?.into()
        }
        EpollCreate => {
            process.account.admit()?;
            if a0 as u32 & !types::open::CLOEXEC != 0 {
                return Err(Errno::EINVAL);
            }
            let file =
                Arc::new(OpenFile::of_epoll(epoll::Epoll::new(&process.account), file::charge(&process.account)?));
            process.descriptors.lock().add(file, a0 as u32 & types::open::CLOEXEC != 0, 0)?.into()
        }
        EpollControl => {
            if a1 as u32 != types::epoll::CTL_DEL {
                process.account.admit()?;
            }
            epoll::control(process, descriptor(a0)?, a1 as u32, descriptor(a2)?, a3)?.into()
        }
        EpollWait => {
            check_signal_mask(process, a4, a5)?;
            let wait = epoll::Wait::new(file(process, a0)?, a1, a2 as i32 as usize, a3 as i32)?;
            Operation::Epoll(kept(wait)).into()
        }
        Poll => {
            // A list that is longer than what is kept for a worker's wait needs memory like everything else.
            if a1 as u32 as usize > epoll::SHORT_LIST {
                process.account.admit()?;
            }
            check_signal_mask(process, a3, a4)?;
            let limit = match a2 {
                0 => TimeLimit::Never,
                address => TimeLimit::after_ns(operation::read_time(process, address)?),
            };
            Operation::PollFiles(kept(epoll::PollFiles::read(process, a0, a1 as u32 as usize, limit)?)).into()
        }

        // Sockets.
        SystemCall::Socket => {
            process.account.admit()?;
            crate::files::file::Socket::create(process, a0 as u32, a1 as u32, a2 as u32)?.into()
        }
        Bind => file(process, a0)?.socket()?.bind(address_in(process, a1, a2)?.ok_or(Errno::EAFNOSUPPORT)?)?.into(),
        Listen => {
            process.account.admit()?;
            let file = file(process, a0)?;
            let done = file.socket()?.listen(a1 as u32 as i32)?;
            // It is another object for the stack now.
            file.watchers.wake();
            done.into()
        }
        Accept => accept(process, a0, a1, a2, 0)?.into(),
        AcceptWith => accept(process, a0, a1, a2, a3 as u32)?.into(),
        Connect => {
            process.account.admit()?;
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

        // Scheduling.
        GetScheduling => scheduling::get(process, a0 as u32, UserBuffer::new(a1, a2)?)?.into(),
        SetScheduling => {
            scheduling::set(process, a0 as u32, a1 as u32, a2 as u64, a3 as u64)?;
            0.into()
        }
        #[cfg(feature = "fail-allocations")]
        SetSystemScheduling if a0 as u32 == types::system_scheduling::FAIL_ALLOCATION => {
            authority::permit(process, Act::ScheduleSystem)?;
            faults::arm(process.id, a1).into()
        }
        SetSystemScheduling => {
            scheduling::set_system(process, a0 as u32, a1 as u64)?;
            0.into()
        }

        TraceRead => trace::read(process, UserBuffer::new(a0, a1)?)?.into(),
        TraceWrite => trace::write(worker, UserBuffer::new(a0, a1)?)?.into(),
        Snapshot => snapshot::take(process, a0 as u32, a1 as u32, UserBuffer::new(a2, a3)?)?.into(),

        // The system.
        SystemName => {
            process.copy_out(a0, &crate::system_name())?;
            0.into()
        }
        GetRandom => {
            let flags = a2 as u32;
            crate::random::check_flags(flags)?;
            Operation::Random { buffer: UserBuffer::new(a0, a1)?, flags, done: 0 }.into()
        }
        Counters => {
            authority::permit(process, Act::Count)?;
            let buffer = UserBuffer::new(a0, a1)?;
            for (position, &counter) in Counter::ALL.iter().enumerate().take(buffer.len() / 8) {
                process.copy_out(a0 + position * 8, &counters::read(counter).to_le_bytes())?;
            }
            Counter::ALL.len().into()
        }
        Log => {
            authority::permit(process, Act::Log)?;
            let buffer = UserBuffer::new(a0, a1.min(256))?;
            let mut line = [0; 256];
            process.copy_in(a0, &mut line[..buffer.len()])?;
            report::line(process, format_args!("{}", line[..buffer.len()].escape_ascii()));
            buffer.len().into()
        }
    })
}

impl From<Operation> for Decoded {
    fn from(operation: Operation) -> Decoded {
        Decoded::Operation(operation)
    }
}

/// Puts what a call waits with into the memory that was kept free for a wait of its worker: such calls need no
/// admission, and work when there is no other memory. What goes on asynchronously is admitted afterwards, before the
/// worker makes its next call.
// Inlined as Box::new was: a function that is called from the dispatcher can make every call save more registers.
#[inline(always)]
fn kept<T>(value: T) -> Box<T> {
    const { assert!(size_of::<T>() <= MEMORY_OF_A_WAIT) };
    faults::from_what_is_kept(|| Box::new(value))
}

/// Puts long work of an admitted call where it stays until it is done. It is small, as what admission is good for has
/// to be.
#[inline(always)]
fn admitted<T>(work: T) -> Pin<Box<T>> {
    const { assert!(size_of::<T>() <= memory::heap::LARGEST_CLASS) };
    Box::pin(work)
}

/// A register as a descriptor. Only the lower half counts, as a C `int`.
fn descriptor(register: usize) -> Result<usize, Errno> {
    usize::try_from(register as i32).map_err(|_| Errno::EBADF)
}

fn file(process: &Process, register: usize) -> Result<Arc<OpenFile>, Errno> {
    Ok(process.descriptors.lock().get(descriptor(register)?)?.clone())
}

/// There are no signals to be masked; what could not be read on Linux is an error here too.
fn check_signal_mask(process: &Process, address: usize, size: usize) -> Result<(), Errno> {
    if address == 0 {
        return Ok(());
    }
    if size != 8 {
        return Err(Errno::EINVAL);
    }
    process.copy_in(address, &mut [0; 8])
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
        let length = length.min(crate::process::user::LARGEST_TRANSFER - total);
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
    process.account.admit()?;
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

/// Ends a call after which files may be gone: pages of large ones are freed in steps, before it is done.
fn settled(process: &Arc<Process>, call: SystemCall, value: usize) -> Decoded {
    if !files::has_remains() {
        return value.into();
    }
    let process = process.clone();
    let work = async move {
        // The call itself was a step.
        steps::pause(&process).await;
        while files::free_remains() {
            steps::pause(&process).await;
        }
        Ok(value)
    };
    Operation::Long(call, Box::into_pin(kept(work))).into()
}

fn kill(caller: &Arc<Process>, target: i32, signal: u32) -> Result<Decoded, Errno> {
    if signal >= types::signal::LIMIT {
        return Err(Errno::EINVAL);
    }
    if target > 0 {
        process::signal_one(caller, target as u32, signal)?;
        return Ok(0.into());
    }
    let caller = caller.clone();
    let work = async move {
        match target {
            0 => process::signal_group(&caller, caller.group(), signal).await,
            -1 => process::signal_everybody(&caller, signal).await,
            id => process::signal_group(&caller, id.unsigned_abs(), signal).await,
        }
        .map(|()| 0)
    };
    Ok(Operation::Long(SystemCall::Kill, Box::into_pin(kept(work))).into())
}

fn reboot(caller: &Process, magic: u32, magic2: u32, command: u32) -> Result<usize, Errno> {
    authority::permit(caller, Act::EndMachine)?;
    if magic != types::reboot::MAGIC1 || magic2 != types::reboot::MAGIC2 {
        return Err(Errno::EINVAL);
    }
    match command {
        types::reboot::POWER_OFF | types::reboot::HALT => crate::power_off(Ending::Exited(0)),
        types::reboot::RESTART => crate::restart(),
        _ => Err(Errno::EINVAL),
    }
}
