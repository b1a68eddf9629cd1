//! The dispatcher: from registers to a decoded call, and from its result back to registers.
//!
//! Each call is one line of [`decode`] or [`decode_other`]. Trivial calls are answered there; every other one is a
//! function of its family, all of one form. The function checks the
//! process's arguments, by the accessors of [`Call`], before it changes anything; then it acts at once, or returns an
//! [`Operation`] if the call may have to wait.
//!
//! The table of calls (`abi_unix::call`) has Linux's name and number of each: Linux's `sys_openat` is `Open` there, and
//! so [`files::open`] here.
//!
//! # Speed
//!
//! The calls that programs make most often are inlined into the dispatcher, and that into the visit to user mode, which
//! has saved all registers already. All other calls are functions of their own, so that the visit stays short.

pub(crate) mod call;
mod extended_attributes;
pub(crate) mod fetching;
mod files;
mod identities;
mod local_sockets;
mod locks;
mod mapping;
mod message_queues;
mod messages;
mod mounting;
mod paths;
mod processes;
mod readiness;
mod remapping;
mod scheduling;
mod segments;
mod semaphores;
mod signals;
mod sockets;
mod system;
mod threads;
mod time;
mod timers;
mod transfers;
mod user_interrupts;

use alloc::sync::Arc;
use core::task::Poll;

use abi_queue::Priority;
use abi_unix::call::{ASYNCHRONOUS, FLAGS, Origin, PRIORITY_SHIFT, Waiting};
use abi_unix::{Counter, Errno, SystemCall, WILL_BE_POSTED, errno};
use hal_api::UserContext;
use memory::faults;

use crate::asynchronous::operation::{self, Operation};
use crate::asynchronous::submission::{HeldCall, Submission};
use crate::calls::call::{ArgumentSource, Call, Decoded, Decoding, Outcome, Pause};
use crate::calls::identities::Of;
use crate::observing::{call_log, counters};
use crate::process::worker::{PagesOf, Worker};

/// Handles the system call in these registers.
// Inlined although it is long: its one caller, the visit to user mode, has saved all registers already.
#[doc(alias = "do_syscall")]
#[doc(alias = "do_trap_ecall_u")]
#[inline(always)]
pub(crate) fn dispatch(worker: &Arc<Worker>, context: &mut UserContext) -> Outcome {
    counters::count(Counter::SystemCalls);
    let register = context.call_number() as usize;
    let Some(number) = SystemCall::from_number(register & !FLAGS) else {
        call_log::is_unknown(register & !FLAGS);
        return Outcome::Done(errno::encode(Err(Errno::ENOSYS)));
    };
    match begin(worker, number, ArgumentSource::Registers(&mut *context)) {
        Outcome::Pause(Pause::Wait(operation)) if register & ASYNCHRONOUS != 0 && !is_its_worker_s(number) => {
            let priority = Priority::saturating((register >> PRIORITY_SHIFT) as u64 & 63);
            let submission = Submission { token: context.register(5), cid: context.register(16), priority };
            match submit(worker, operation, submission) {
                Ok(()) => Outcome::Done(WILL_BE_POSTED),
                // It has begun, and a program could not understand half of it: the worker waits for the rest.
                Err((_, operation)) if operation.must_be_completed() => Outcome::Pause(Pause::Wait(operation)),
                // Bytes that were moved already are the result.
                Err((error, operation)) => Outcome::Done(errno::encode(operation.give_up(error))),
            }
        }
        outcome => outcome,
    }
}

/// Returns whether a call changes its worker, and is long at most: it is completed before its worker goes on, whichever
/// form it has. Beside its worker it could outlast it.
fn is_its_worker_s(number: SystemCall) -> bool {
    number.origin() == Origin::Worker && number.waiting() == Waiting::Never
}

/// Makes a call that came through a request ring, for the ring's worker; returns `None` if its result will be posted.
/// Work that has begun and finds no place among the calls in flight is `held` then.
// Inlined although it is long: its one caller takes many requests, and each would save and load all registers.
#[doc(alias = "io_issue_sqe")]
#[inline(always)]
pub(crate) fn perform(
    worker: &Arc<Worker>,
    number: usize,
    arguments: &[u64; 6],
    submission: Submission,
    held: &mut Option<HeldCall>,
) -> Option<usize> {
    let Some(number) = SystemCall::from_number(number) else { return Some(errno::encode(Err(Errno::ENOSYS))) };
    if number.origin() == Origin::Worker {
        return Some(errno::encode(Err(Errno::EOPNOTSUPP)));
    }
    let operation = match begin(worker, number, ArgumentSource::Request(arguments)) {
        Outcome::Done(value) => return Some(value),
        Outcome::Pause(Pause::Wait(operation)) => operation,
        // Calls for workers only have no meaning here.
        Outcome::Unchanged | Outcome::Pause(_) => return Some(errno::encode(Err(Errno::EOPNOTSUPP))),
    };
    let refused = submit(worker, operation, submission).err()?;
    without_a_place(worker, refused, submission, held)
}

/// Ends an operation that was attempted and found no place among the calls in flight, or has the ring hold one that
/// must be completed.
#[cold]
#[inline(never)]
fn without_a_place(
    worker: &Arc<Worker>,
    (error, operation): (Errno, Operation),
    submission: Submission,
    held: &mut Option<HeldCall>,
) -> Option<usize> {
    if operation.must_be_completed() && !worker.process.has_ended() {
        *held = Some((operation, submission));
        return None;
    }
    // Bytes that were moved already are the result.
    Some(errno::encode(operation.give_up(error)))
}

/// Decodes a call, and attempts it if it may have to wait.
#[inline(always)]
fn begin(worker: &Arc<Worker>, number: SystemCall, source: ArgumentSource<'_>) -> Outcome {
    let process = &worker.process;
    let is_direct = matches!(source, ArgumentSource::Registers(_));
    faults::works_for(process.id);
    match decode(worker, number, source) {
        Ok(Decoded::Outcome(outcome)) => outcome,
        // A wait needs no memory but the worker's own.
        Ok(Decoded::Operation(mut operation)) => match attempt(worker, is_direct, &mut operation) {
            Poll::Ready(result) => Outcome::Done(result.unwrap_or_else(|error| failed(worker, is_direct, error))),
            Poll::Pending => Outcome::Pause(Pause::Wait(operation)),
        },
        Err(error) => Outcome::Done(failed(worker, is_direct, error)),
    }
}

/// Attempts a call, whose time is the worker's if the worker makes it itself.
#[inline(always)]
fn attempt(worker: &Arc<Worker>, is_direct: bool, operation: &mut Operation) -> Poll<Result<usize, Errno>> {
    if is_direct && matches!(operation, Operation::Long(..)) {
        return worker.measure_too(|| operation.attempt(&worker.process));
    }
    operation.attempt(&worker.process)
}

/// Returns the result of a call that has failed. A direct one is made again if it has met a page that is not in memory
/// yet; rings have no such pages.
#[cold]
#[inline(never)]
fn failed(worker: &Worker, is_direct: bool, error: Errno) -> usize {
    if is_direct && error == Errno::EFAULT && worker.process.space().lock().has_missed() {
        worker.has_to_fetch(PagesOf::LastCall);
    }
    errno::encode(Err(error))
}

/// Makes an operation that was attempted go on asynchronously; returns it with the reason if that fails.
#[inline(always)]
fn submit(worker: &Arc<Worker>, operation: Operation, submission: Submission) -> Result<(), (Errno, Operation)> {
    match worker.process.account.admit() {
        Ok(()) => operation::go_on_asynchronously(&worker.process, operation, submission),
        Err(error) => Err((error, operation)),
    }
}

/// Hands a call to its family: here those that programs make at a high rate, and all others by a function of their own.
// Inlined although it is long: as a function of its own it makes every trap save all registers. The others stay
// outside, because the compiler prepares constants that several lines share before the jump to any of them.
#[doc(alias = "sys_call_table")]
#[doc(alias = "SYSCALL_DEFINE")]
#[inline(always)]
fn decode(worker: &Arc<Worker>, number: SystemCall, source: ArgumentSource<'_>) -> Decoding {
    use SystemCall::*;
    // Each call puts its description together itself: those that need none store none, and those that are inlined keep
    // it in registers.
    let call = || Call::new(worker, number, source);
    match number {
        Read => transfers::read(call()),
        Write => transfers::write(call()),
        ReadVector => transfers::read_vector(call()),
        WriteVector => transfers::write_vector(call()),
        GetProcess => Ok((worker.process.id as usize).into()),
        Yield => Ok(Pause::GiveWay.into()),
        Futex => threads::futex(call()),
        WorkerWait => threads::wait(call()),
        WorkerWake => threads::wake(call()),
        RingEnter => threads::enter_ring(call()),
        InterruptReturn => user_interrupts::return_to_interrupted(call()),
        InterruptLeave => user_interrupts::leave_handler(call()),
        InterruptSend => user_interrupts::send(call()),
        EpollWait => readiness::wait_for_epoll(call()),
        SendTo => sockets::send(call()),
        ReceiveFrom => sockets::receive(call()),
        _ => decode_other(call()),
    }
}

/// Hands a call that is not in [`decode`] to its family.
#[inline(never)]
fn decode_other(call: Call<'_>) -> Decoding {
    use SystemCall::*;
    match call.number {
        ReadAt => transfers::read_at(call),
        WriteAt => transfers::write_at(call),
        ReadVectorAt => transfers::read_vector_at(call),
        WriteVectorAt => transfers::write_vector_at(call),
        ReadVectorWith => transfers::read_vector_with(call),
        WriteVectorWith => transfers::write_vector_with(call),
        SendFile => transfers::send_file(call),
        Splice => transfers::splice(call),
        Tee => transfers::tee(call),
        SpliceMemory => transfers::splice_memory(call),
        CopyFileRange => transfers::copy_range(call),
        GetRandom => transfers::random(call),

        GetParent => Ok((call.process().parent() as usize).into()),
        GetThread => Ok((call.worker.thread_id() as usize).into()),
        GetUser => identities::real(call, Of::Users),
        GetGroup => identities::real(call, Of::Groups),
        GetEffectiveUser => identities::effective(call, Of::Users),
        GetEffectiveGroup => identities::effective(call, Of::Groups),
        GetUserTriple => identities::get_three(call, Of::Users),
        GetGroupTriple => identities::get_three(call, Of::Groups),
        SetUser => identities::set(call, Of::Users),
        SetGroup => identities::set(call, Of::Groups),
        SetUserPair => identities::set_two(call, Of::Users),
        SetGroupPair => identities::set_two(call, Of::Groups),
        SetUserTriple => identities::set_three(call, Of::Users),
        SetGroupTriple => identities::set_three(call, Of::Groups),
        SetFileUser => identities::set_of_files(call, Of::Users),
        SetFileGroup => identities::set_of_files(call, Of::Groups),
        Spawn => processes::spawn(call),
        Execute => processes::execute(call),
        ExecuteAt => processes::execute_at(call),
        Exit => processes::exit(call),
        ExitGroup => processes::exit_group(call),
        Wait => processes::wait(call),
        WaitIdentified => processes::wait_identified(call),
        Kill => processes::kill(call),
        ProcessFile => processes::open_process(call),
        TakeFile => processes::take_file(call),
        SignalProcessFile => signals::send_to_process_file(call),
        KillThread => signals::kill_thread(call),
        KillThreadOf => signals::kill_thread_of(call),
        SignalFile => signals::open_file(call),
        SignalStack => signals::stack(call),
        SignalSuspend => signals::suspend(call),
        SignalAction => signals::action(call),
        SignalMask => signals::mask(call),
        SignalPending => signals::pending(call),
        SignalWait => signals::wait(call),
        SignalQueue => signals::queue(call),
        SignalQueueThread => signals::queue_thread(call),
        SignalReturn => signals::return_from_handler(call),
        SetProcessGroup => processes::set_group(call),
        GetProcessGroup => processes::get_group(call),
        GetSession => processes::get_session(call),
        SetSession => processes::set_session(call),
        GetGroups => identities::groups(call),
        SetGroups => identities::set_groups(call),
        ProcessLimit => processes::limit(call),
        GetLimit => processes::get_limit(call),
        SetLimit => processes::set_limit(call),
        Personality => processes::personality(call),
        Trace => Err(Errno::EPERM),
        GetCapabilities => processes::get_capabilities(call),
        SetCapabilities => processes::set_capabilities(call),
        Reboot => processes::reboot(call),

        SetThreadIdAddress => threads::set_id_address(call),
        Clone => threads::clone(call),
        CloneWith => threads::clone_with(call),
        SetRobustList => threads::set_robust_list(call),
        GetRobustList => threads::get_robust_list(call),
        FutexWaits => threads::wait_for_futexes(call),
        WorkerCreate => threads::create_worker(call),
        Cancel => threads::cancel(call),
        RingSetup => threads::set_up_ring(call),
        KernelSide => threads::choose_kernel_side(call),

        InterruptHandler => user_interrupts::set_handler(call),
        InterruptReceiver => user_interrupts::create_receiver(call),
        InterruptGrant => user_interrupts::grant(call),
        InterruptOpen => user_interrupts::open(call),
        InterruptPage => user_interrupts::page(call),
        InterruptRevoke => user_interrupts::revoke(call),

        Sleep => time::sleep(call),
        SleepOn => time::sleep_on_clock(call),
        GetTime => time::get(call),
        GetResolution => time::resolution(call),
        GetTimeOfDay => time::of_day(call),
        Times => time::times(call),
        GetUsage => time::usage(call),

        GetIntervalTimer => timers::get_interval(call),
        SetIntervalTimer => timers::set_interval(call),
        TimerCreate => timers::create(call),
        TimerGet => timers::get(call),
        TimerOverrun => timers::overrun(call),
        TimerSet => timers::set(call),
        TimerDelete => timers::delete(call),
        TimerFile => timers::create_file(call),
        TimerFileSet => timers::set_file(call),
        TimerFileGet => timers::get_file(call),

        Break => mapping::set_break(call),
        Map => mapping::map(call),
        Remap => remapping::remap(call),
        Unmap => mapping::unmap(call),
        Protect => mapping::protect(call),
        AdviseMemory => mapping::advise(call),
        SynchroniseMemory => mapping::synchronise(call),
        LockMemory | UnlockMemory => mapping::lock(call),
        LockMemoryWith => mapping::lock_with(call),
        LockAllMemory => mapping::lock_all(call),
        UnlockAllMemory => Ok(0.into()),
        Residence => mapping::residence(call),
        FlushInstructions => mapping::flush_instructions(call),
        MemoryBarrier => mapping::barrier(call),
        QueueOpen => message_queues::open(call),
        QueueUnlink => message_queues::unlink(call),
        QueueSend => message_queues::send(call),
        QueueReceive => message_queues::receive(call),
        QueueNotify => message_queues::notify(call),
        QueueAttributes => message_queues::attributes(call),
        SegmentGet => segments::get(call),
        SegmentControl => segments::control(call),
        SegmentAttach => segments::attach(call),
        SegmentDetach => segments::detach(call),
        SemaphoreGet => semaphores::get(call),
        SemaphoreControl => semaphores::control(call),
        SemaphoreOperate => semaphores::operate(call, false),
        SemaphoreOperateUntil => semaphores::operate(call, true),

        Open => files::open(call),
        Close => files::close(call),
        CloseRange => files::close_range(call),
        Pipe => files::pipe(call),
        Duplicate => files::duplicate(call),
        DuplicateTo => files::duplicate_to(call),
        FileControl => files::control(call),
        Lock => locks::lock_file(call),
        DeviceControl => files::device_control(call),
        GetCurrentDirectory => files::current_directory(call),
        ChangeDirectory => files::change_directory(call),
        ChangeDirectoryTo => files::change_directory_to(call),
        MakeNode => files::make_node(call),
        MakeDirectory => files::make_directory(call),
        Unlink => files::unlink(call),
        SymbolicLink => files::symbolic_link(call),
        Link => files::link(call),
        Rename => files::rename(call),
        ReadLink => files::read_link(call),
        Access | AccessWith => files::access(call),
        StatusAt => files::status_at(call),
        Status => files::status(call),
        ExtendedStatus => files::extended_status(call),
        Mount => mounting::mount(call),
        Unmount => mounting::unmount(call),
        FileSystemAt => mounting::statistics_at(call),
        FileSystem => mounting::statistics(call),
        Truncate => files::truncate(call),
        Allocate => files::allocate(call),
        TruncateAt => files::truncate_at(call),
        ChangeMode => files::change_mode(call),
        ChangeModeAt | ChangeModeWith => files::change_mode_at(call),
        ChangeOwner => files::change_owner(call),
        ChangeOwnerAt => files::change_owner_at(call),
        SetTimes => files::set_times(call),
        SetCreationMask => files::set_creation_mask(call),
        Synchronise => files::synchronise_all(call),
        SynchroniseFile | SynchroniseData => files::synchronise(call),
        SynchroniseFileSystem => files::synchronise_file_system(call),
        SynchroniseRange => files::synchronise_range(call),
        ReadAhead => files::read_ahead(call),
        AdviseFile => files::advise(call),
        Seek => files::seek(call),
        ReadDirectory => files::read_directory(call),

        EventCounter => readiness::create_event_counter(call),
        EventFile => readiness::create_event_file(call),
        WatchFile => readiness::watch_file(call),
        EndWatch => readiness::end_watch(call),
        MemoryFile => files::create_memory_file(call),
        EpollCreate => readiness::create_epoll(call),
        EpollControl => readiness::control_epoll(call),
        EpollWaitWith => readiness::wait_for_epoll_with(call),
        Poll => readiness::poll(call),
        Select => readiness::select(call),

        Socket => sockets::create(call),
        SocketPair => messages::pair(call),
        SendMessage => messages::send(call),
        ReceiveMessage => messages::receive(call),
        SendMessages => messages::send_several(call),
        ReceiveMessages => messages::receive_several(call),
        Bind => sockets::bind(call),
        Listen => sockets::listen(call),
        Accept => sockets::accept(call),
        AcceptWith => sockets::accept_with_flags(call),
        Connect => sockets::connect(call),
        GetSocketName => sockets::local_address(call),
        GetPeerName => sockets::remote_address(call),
        SetSocketOption => sockets::set_option(call),
        GetSocketOption => sockets::get_option(call),
        Shutdown => sockets::shut_down(call),

        SetAttribute | SetAttributeOfLink | SetAttributeOfFile => extended_attributes::set(call),
        GetAttribute | GetAttributeOfLink | GetAttributeOfFile => extended_attributes::get(call),
        ListAttributes | ListAttributesOfLink | ListAttributesOfFile => extended_attributes::list(call),
        RemoveAttribute | RemoveAttributeOfLink | RemoveAttributeOfFile => extended_attributes::remove(call),

        GetScheduling => scheduling::get(call),
        SetScheduling => scheduling::set(call),
        GetNice => scheduling::get_nice(call),
        SetNice => scheduling::set_nice(call),
        GetClass => scheduling::get_class(call),
        SetClass => scheduling::set_class(call),
        GetClassPriority => scheduling::get_class_priority(call),
        SetClassPriority => scheduling::set_class_priority(call),
        GreatestClassPriority => scheduling::greatest_class_priority(call),
        LeastClassPriority => scheduling::least_class_priority(call),
        GetSlice => scheduling::slice(call),
        SetSystemScheduling => scheduling::set_system(call),
        TraceRead => scheduling::read_trace(call),
        TraceWrite => scheduling::write_trace(call),
        Snapshot => scheduling::snapshot(call),

        ProcessControl => processes::control(call),
        GetHart => system::hart(call),
        SystemName => system::name(call),
        SystemInformation => system::information(call),
        GetAffinity => system::affinity(call),
        SetAffinity => system::set_affinity(call),
        Counters => system::read_counters(call),
        Log => system::log(call),

        // Calls of the table above.
        Read | Write | ReadVector | WriteVector | GetProcess | Yield | Futex | WorkerWait | WorkerWake | RingEnter
        | InterruptReturn | InterruptLeave | InterruptSend | EpollWait | SendTo | ReceiveFrom => Err(Errno::ENOSYS),
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::call::{Argument, Waiting};

    use super::*;
    use crate::testing::run;

    /// Every call with bad descriptors or bad addresses fails, if it has such arguments, and has no other effect; the
    /// process goes on.
    #[test]
    fn nonsense_is_answered_by_every_call() {
        run(|program| {
            for &call in SystemCall::ALL {
                // They end the caller or its program, or change how it runs.
                let is_last = matches!(call, SystemCall::Exit | SystemCall::ExitGroup | SystemCall::SignalReturn);
                if is_last || matches!(call, SystemCall::KernelSide | SystemCall::WorkerWait | SystemCall::Clone) {
                    continue;
                }
                for nonsense in [usize::MAX, 0x1000, 1 << 62, 0xffff_ffc0_8020_0000] {
                    let arguments: [usize; 6] = core::array::from_fn(|index| match call.arguments().get(index) {
                        Some((_, Argument::Number)) => 0,
                        Some((_, Argument::Length)) => 16,
                        Some((_, Argument::Descriptor)) => usize::MAX,
                        Some(_) => nonsense,
                        None => usize::MAX,
                    });
                    let has_bad = |kind: &[Argument]| call.arguments().iter().any(|(_, found)| kind.contains(found));
                    let result = program.call(call, arguments);
                    if has_bad(&[Argument::Path])
                        || call.arguments().first().map(|(_, kind)| *kind) == Some(Argument::Descriptor)
                    {
                        assert!(result.is_err(), "{} with {nonsense:#x}: {result:?}", call.name());
                    }
                    if let Err(error) = result {
                        assert_ne!(error, Errno::ENOSYS, "{}", call.name());
                    }
                }
            }
        });
    }

    /// A call that never waits is the same in both forms.
    #[test]
    fn calls_that_never_wait_answer_at_once_in_their_asynchronous_form() {
        run(|program| {
            for &call in SystemCall::ALL {
                let numbers_itself = matches!(
                    call,
                    SystemCall::GetProcess
                        | SystemCall::GetParent
                        | SystemCall::GetThread
                        | SystemCall::GetUser
                        | SystemCall::GetGroup
                        | SystemCall::GetEffectiveUser
                        | SystemCall::GetEffectiveGroup
                );
                if numbers_itself {
                    assert_eq!(call.waiting(), Waiting::Never);
                    let direct = program.call(call, []);
                    assert_eq!(program.submit(call, [], 1), Some(direct), "{}", call.name());
                }
            }
            assert_eq!(program.completions(), []);
        });
    }

    #[test]
    fn numbers_beyond_the_table_and_unknown_bits_are_no_calls() {
        run(|program| {
            for number in [0, 1, 500, 0xfff, 0x1fff, 0xffff] {
                assert_eq!(SystemCall::from_number(number), None);
                assert_eq!(program.call_number(number, [1, 2, 3, 4, 5, 6]), Err(Errno::ENOSYS));
            }
            for bit in (16..64).filter(|bit| FLAGS & 1 << bit == 0) {
                let number = SystemCall::GetProcess as usize | 1 << bit;
                assert_eq!(program.call_number(number, []), Err(Errno::ENOSYS), "{number:#x}");
            }
            let own = program.id as usize;
            assert_eq!(program.call_number(SystemCall::GetProcess as usize | FLAGS, []), Ok(own));
        });
    }
}
