//! Authority: the operations of a process on others, with and without capabilities.

use abi_unix::authority::{CapabilitySet, Held, version};
use abi_unix::call::WILL_BE_POSTED;
use abi_unix::errno::decode;
use abi_unix::types::{
    AF_INET, SOCK_RAW, limit, open, reboot, scheduling as attribute, signal, system_scheduling, terminal,
};
use abi_unix::{Act, Errno};
use alloc::format;
use cops::process::{Child, Command, Ending};
use cops::system::process::kill;
use cops::system::terminal as console;
use cops::system::{self, SystemCall, authority, scheduling};
use cops::time::Duration;

use crate::harness::{self, Outcome, act, call, until};
use crate::ring::Raw;
use crate::{check_eq, must};

/// Address that is not mapped.
const NOWHERE: usize = 8;

/// A way to make a call. The kernel's check must cover all of them.
#[derive(Clone, Copy, Debug)]
enum Way {
    Synchronously,
    Asynchronously,
    ThroughTheRing,
}

/// Token of calls that complete in the ring.
const TOKEN: u64 = 4711;

/// Makes a call that reads memory of its caller until it is complete; returns its result.
fn make(ring: &mut Raw, way: Way, which: SystemCall, arguments: [usize; 6]) -> system::Result<usize> {
    match way {
        Way::Synchronously => return call(which, arguments),
        Way::Asynchronously => {
            // SAFETY: the calls of the table read memory that the caller keeps, and write to no memory in use.
            let word = unsafe { system::syscall_asynchronous(which as usize, arguments, 0, 4, TOKEN) };
            if word != WILL_BE_POSTED {
                return decode(word);
            }
        }
        Way::ThroughTheRing => {
            ring.submit(which, TOKEN, &arguments).map_err(|_| Errno::EIO)?;
            system::worker::ring_enter(0, 0)?;
        }
    }
    loop {
        if let Some(completion) = ring.take() {
            return if completion.token == TOKEN { decode(completion.result as usize) } else { Err(Errno::EIO) };
        }
        system::worker::yield_now();
    }
}

/// Returns the result of an act on another process, which is alone in its group. An allowed act does no harm, unless it
/// is `meant`.
fn attempt(ring: &mut Raw, way: Way, act: Act, other: usize, meant: bool) -> system::Result<usize> {
    let header = [version::THREE, other as u32];
    let nothing = [0u32; 6];
    let no_limit = [u64::MAX; 2];
    // A pattern that nobody may set.
    let (names, pattern) = (c"/proc/sys/kernel/core_pattern", b"|");
    let names = match act {
        Act::ChangeSetting => call(SystemCall::Open, [0, names.as_ptr() as usize, open::WRONLY as usize, 0, 0, 0])?,
        _ => 0,
    };
    let arguments = match act {
        Act::EndMachine => [
            reboot::MAGIC1 as usize,
            if meant { reboot::MAGIC2 as usize } else { 0 },
            reboot::POWER_OFF as usize,
            0,
            0,
            0,
        ],
        Act::Signal => [other, if meant { signal::KILL as usize } else { 0 }, 0, 0, 0, 0],
        Act::Schedule => [other, attribute::MODE as usize, 0, 0, 0, 0],
        Act::ScheduleMore => [0, attribute::BUDGET as usize, usize::MAX, 100_000_000, 0, 0],
        Act::ScheduleSystem => [system_scheduling::MODE as usize, 0, 0, 0, 0, 0],
        Act::SetLimit => [other, limit::DESCRIPTORS as usize, 0, 0, 0, 0],
        Act::RaiseLimit => [0, limit::KERNEL_MEMORY as usize, no_limit.as_ptr() as usize, 0, 0, 0],
        Act::Inspect => [other, 0, 0, 0, 0, 0],
        Act::Count => [0, 0, 0, 0, 0, 0],
        Act::ReadTrace => [0, 0, 0, 0, 0, 0],
        Act::TakeSnapshot => [abi_unix::trace::subject::HARTS as usize, 0, 0, 0, 0, 0],
        Act::Log => [NOWHERE, 1, 0, 0, 0, 0],
        Act::Empower => [header.as_ptr() as usize, nothing.as_ptr() as usize, 0, 0, 0, 0],
        Act::Mount => [0, NOWHERE, 0, 0, 0, 0],
        Act::Unmount => [NOWHERE, 0, 0, 0, 0, 0],
        Act::ChangeSetting => [names, pattern.as_ptr() as usize, 1, 0, 0, 0],
        Act::UseRawSockets => [AF_INET as usize, SOCK_RAW as usize, 1, 0, 0, 0],
        Act::PressKey => [0, terminal::INSERT as usize, NOWHERE, 0, 0, 0],
    };
    let made = make(ring, way, act.call(), arguments);
    if act == Act::ChangeSetting {
        call(SystemCall::Close, [names, 0, 0, 0, 0, 0])?;
    }
    made
}

/// An act of this program: `others NUMBER CAPABILITIES` tries every act on a process and expects that those of these
/// capabilities are allowed, and no others.
pub fn others(argument: Option<&str>) -> i32 {
    let mut words = argument.unwrap_or("").split(':').map(|word| word.parse::<u64>().unwrap_or(0));
    let (other, bits) = (words.next().unwrap_or(0) as usize, words.next().unwrap_or(0));
    let set = CapabilitySet::from_bits(bits);
    if authority::held(0) != Ok(Held { inheritable: set, ..Held::of(set.or(CapabilitySet::OF_OWN_NUMBERS)) }) {
        cops::eprintln!("the process holds {:?}", authority::held(0));
        return 1;
    }
    let Ok(mut ring) = Raw::new() else { return 3 };
    for act in Act::ALL {
        let is_allowed = set.has(act.capability());
        for way in [Way::Synchronously, Way::Asynchronously, Way::ThroughTheRing] {
            let result = attempt(&mut ring, way, *act, other, !is_allowed);
            if (result == Err(Errno::EPERM)) == is_allowed || result == Err(Errno::EIO) {
                cops::eprintln!("{act:?} {way:?} with {bits:#x} gives {result:?}");
                return 2;
            }
        }
    }
    // A ring that lost its requests would have refused nothing.
    let (parent, number) = (cops::process::parent() as usize, SystemCall::GetParent);
    i32::from(make(&mut ring, Way::ThroughTheRing, number, [0; 6]) != Ok(parent))
}

/// Starts a process that sleeps, alone in its group.
fn sleeper() -> Result<Child, alloc::string::String> {
    let child = must!(act("sleep"));
    must!(console::set_group(child.number(), 0));
    Ok(child)
}

/// Starts the act above in a process that holds these capabilities.
async fn with(set: CapabilitySet, other: &Child) -> Outcome {
    let own = must!(authority::held(0));
    must!(authority::set(0, Held { inheritable: set, ..own }));
    let argument = format!("{}:{}", other.number(), set.bits());
    let child = Command::new(harness::OWN_PATH).argument("--act").argument("others").argument(&argument).spawn();
    must!(authority::set(0, own));
    check_eq!(harness::wait(&must!(child)).await, Some(Ok(Ending::Exited(0))));
    Ok(())
}

pub async fn every_act_needs_its_capability() -> Outcome {
    let other = sleeper()?;
    // Without capabilities the machine is not switched off, and the other process lives on.
    with(CapabilitySet::NONE, &other).await?;
    check_eq!(kill(other.number(), 0), Ok(()));
    for capability in abi_unix::Capability::ALL {
        with(CapabilitySet::only(*capability), &other).await?;
    }
    // All but one lack that one.
    for capability in abi_unix::Capability::ALL {
        let rest = !CapabilitySet::only(*capability).bits();
        with(CapabilitySet::from_bits(rest), &other).await?;
    }
    must!(other.kill());
    check_eq!(harness::wait(&other).await, Some(Ok(Ending::Killed(signal::KILL as u8))));
    Ok(())
}

/// An act: a process without capabilities that tries to kill all others.
pub async fn end_all_processes() -> i32 {
    let Ok(below) = act("sleep") else { return 1 };
    let signal_all = |target: i64| {
        // SAFETY: the call has no pointers.
        unsafe { system::call!(Kill, target, signal::KILL) }
    };
    let parent = cops::process::parent();
    let Ok(group) = console::group(parent) else { return 2 };
    if group == cops::process::number() || kill(parent, 0) != Err(Errno::EPERM) {
        return 3;
    }
    // Target -1 means all processes: descendants are killed, and no others, which is no error (as on Linux).
    if signal_all(-1) != Ok(0) {
        return 4;
    }
    if below.wait().await != Ok(Ending::Killed(signal::KILL as u8)) {
        return 5;
    }
    // Out of the group first: it would end itself with it.
    if console::set_group(0, 0).is_err() || signal_all(-i64::from(group)) != Err(Errno::EPERM) {
        return 6;
    }
    // Membership in a group gives no authority over the others in it.
    let Ok(()) = console::set_group(0, group) else { return 7 };
    for target in [0, -i64::from(group)] {
        // SAFETY: the call has no pointers; the signal does nothing.
        if unsafe { system::call!(Kill, target, 0) } != Ok(0) {
            return 8;
        }
    }
    0
}

/// An act: starts a process that outlives this one.
pub fn leave_a_sleeper() -> i32 {
    match act("sleep") {
        Ok(child) => {
            cops::println!("{}", child.number());
            0
        }
        Err(_) => 1,
    }
}

pub async fn processes_end_only_those_below_them() -> Outcome {
    // Group 1, the initial one, has no number that `kill` could mean.
    must!(console::set_group(0, 0));
    let neighbour = must!(act("sleep"));
    check_eq!(harness::ending_of_act("end-all-processes").await?, Ending::Exited(0));
    check_eq!(kill(neighbour.number(), 0), Ok(()));
    must!(neighbour.kill());
    check_eq!(harness::wait(&neighbour).await, Some(Ok(Ending::Killed(signal::KILL as u8))));

    // A process without capabilities, too, reaches its descendants, although the one in between has ended.
    must!(authority::set(0, Held::NONE));
    check_eq!(kill(1, 0), Err(Errno::EPERM));
    check_eq!(kill(1, signal::KILL), Err(Errno::EPERM));
    let (reader, writer) = must!(cops::io::pipe());
    let child = Command::new(harness::OWN_PATH).argument("--act").argument("leave-a-sleeper");
    let child = must!(child.descriptor(1, writer.into_descriptor()).spawn());
    let (count, text) = reader.read(alloc::vec![0; 16]).await;
    let text = core::str::from_utf8(&text[..must!(count)]).unwrap_or("").trim();
    let grandchild: u32 = must!(text.parse());
    check_eq!(harness::wait(&child).await, Some(Ok(Ending::Exited(0))));
    check_eq!(kill(grandchild, 0), Ok(()));
    check_eq!(must!(scheduling::get(grandchild)).ceiling, must!(scheduling::get(0)).ceiling);
    check_eq!(kill(grandchild, signal::KILL), Ok(()));
    // No process waits for it, so it disappears completely.
    until(|| Ok(kill(grandchild, 0) == Err(Errno::ESRCH))).await
}

pub async fn capabilities_are_given_up_and_handed_down() -> Outcome {
    let (some, one) = (CapabilitySet::from_bits(0x60), CapabilitySet::from_bits(0x20));
    // Illegal calls first.
    let mut data = [0u32; 6];
    let address = data.as_mut_ptr() as usize;
    let make = |which: SystemCall, header: &mut [u32; 2], data: usize| {
        call(which, [header.as_mut_ptr() as usize, data, 0, 0, 0, 0])
    };
    for which in [SystemCall::GetCapabilities, SystemCall::SetCapabilities] {
        check_eq!(call(which, [NOWHERE, address, 0, 0, 0, 0]), Err(Errno::EFAULT));
        let mut unknown = [7, 0];
        check_eq!(make(which, &mut unknown, address), Err(Errno::EINVAL));
        check_eq!(core::hint::black_box(unknown), [version::THREE, 0]);
        check_eq!(make(which, &mut [version::THREE, 0], NOWHERE), Err(Errno::EFAULT));
        check_eq!(make(which, &mut [version::THREE, u32::MAX], address), Err(Errno::EINVAL));
        check_eq!(make(which, &mut [version::THREE, 30_000], address), Err(Errno::ESRCH));
    }
    check_eq!(make(SystemCall::GetCapabilities, &mut [7, 0], 0), Ok(0));
    check_eq!(make(SystemCall::SetCapabilities, &mut [version::THREE, 0], 0), Err(Errno::EFAULT));
    // The oldest layout has only the lower halves.
    data = [9; 6];
    check_eq!(make(SystemCall::GetCapabilities, &mut [version::ONE, 0], address), Ok(0));
    check_eq!(core::hint::black_box(data), [u32::MAX, u32::MAX, 0, 9, 9, 9]);

    check_eq!(authority::held(0), Ok(Held::of(CapabilitySet::ALL)));
    check_eq!(authority::held(1).map(|held| held.permitted), Ok(CapabilitySet::ALL));
    // Permitted capabilities that are not effective are not in force, and can be made effective.
    must!(authority::set(0, Held { effective: CapabilitySet::NONE, ..Held::of(some) }));
    check_eq!(system::system::counters().err(), Some(Errno::EPERM));
    check_eq!(must!(scheduling::get(0)).privilege, 0);
    must!(authority::set(0, Held { effective: one, ..Held::of(some) }));
    for too_much in [
        Held::of(CapabilitySet::ALL),
        Held { effective: some, ..Held::of(one) },
        Held { inheritable: CapabilitySet::ALL, ..Held::of(some) },
    ] {
        check_eq!(authority::set(0, too_much), Err(Errno::EPERM));
    }
    // A child has none but for its own numbers, and can be given those of its parent; it cannot give any back.
    let child = must!(act("sleep"));
    check_eq!(authority::held(child.number()), Ok(Held::of(CapabilitySet::OF_OWN_NUMBERS)));
    check_eq!(authority::set(child.number(), Held::of(CapabilitySet::ALL)), Err(Errno::EPERM));
    must!(authority::set(child.number(), Held::of(some)));
    check_eq!(authority::held(child.number()), Ok(Held::of(some)));
    check_eq!(authority::set(1, Held::NONE), Err(Errno::EPERM));
    check_eq!(authority::set(cops::process::parent(), Held::NONE), Err(Errno::EPERM));
    must!(authority::set(child.number(), Held::NONE));
    must!(child.kill());
    check_eq!(harness::wait(&child).await, Some(Ok(Ending::Killed(signal::KILL as u8))));
    must!(authority::set(0, Held::of(one)));
    check_eq!(authority::set(0, Held::of(some)), Err(Errno::EPERM));
    Ok(())
}

/// An act: starts itself again below this one, up to the limit.
pub async fn descend() -> i32 {
    match act("descend") {
        Ok(child) => match child.wait().await {
            Ok(Ending::Exited(status)) => status.into(),
            _ => 1,
        },
        Err(Errno::EAGAIN) => 42,
        Err(_) => 2,
    }
}

pub async fn the_tree_has_a_depth() -> Outcome {
    let child = must!(act("descend"));
    let ending = cops::timeout(Duration::from_secs(500), child.wait()).await;
    check_eq!(must!(must!(ending)), Ending::Exited(42));
    Ok(())
}
