//! User interrupts between coroutines, workers and processes. Each test uses the interface alone, so that it applies to
//! every back end; the machine chooses the back end.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::pin::pin;
use core::sync::atomic::{AtomicU32, Ordering};

use abi_queue::ProcessPage;
use abi_queue::pages::{PROCESS_PAGE_OFFSET, SEND_OFFSET};
use abi_unix::Counter;
use abi_unix::types::auxiliary;
use cops::interrupt::{Receiver, SendRight};
use cops::process::{Command, Ending};
use cops::select::Either;
use cops::system::Descriptor;
use cops::time::Duration;
use cops::{Errno, Priority};

use crate::harness::{self, LIMIT, OWN_PATH, Outcome, counter, ending_of_act, returns_to, wait};
use crate::{check, check_eq, must};

/// Waits for a signal, for a limited time.
async fn signalled(receiver: &Receiver) -> Outcome {
    must!(cops::timeout(LIMIT, receiver.wait()).await);
    Ok(())
}

pub async fn errors_come_first() -> Outcome {
    let receiver = must!(Receiver::new());
    let right = must!(receiver.grant());
    // Descriptors that are no rights, and no receivers.
    let pipe = Descriptor::from_raw(1);
    check_eq!(cops::system::interrupt::send(&pipe), Err(Errno::EINVAL));
    check_eq!(cops::system::interrupt::grant(&pipe).map(drop), Err(Errno::EINVAL));
    check_eq!(cops::system::interrupt::revoke(&pipe), Err(Errno::EINVAL));
    core::mem::forget(pipe);
    let nothing = Descriptor::from_raw(9999);
    check_eq!(cops::system::interrupt::send(&nothing), Err(Errno::EBADF));
    check_eq!(cops::system::interrupt::grant(&nothing).map(drop), Err(Errno::EBADF));
    core::mem::forget(nothing);
    for identity in [0, 63, 64, 1 << 31, usize::MAX] {
        check_eq!(cops::system::interrupt::receiver(identity).map(drop), Err(Errno::EINVAL));
    }
    check_eq!(cops::system::interrupt::receiver(receiver.identity()).map(drop), Err(Errno::EBUSY));
    // No right was granted to this process, and none can be granted to a process that does not exist.
    check_eq!(SendRight::open(cops::process::number(), receiver.identity()).map(drop), Err(Errno::EPERM));
    check_eq!(SendRight::open(1, 7).map(drop), Err(Errno::EPERM));
    check_eq!(SendRight::open(1, usize::MAX).map(drop), Err(Errno::EPERM));
    check_eq!(SendRight::open(32767, 1).map(drop), Err(Errno::ESRCH));
    check_eq!(receiver.grant_to(32767), Err(Errno::ESRCH));
    // A right is no file.
    let descriptor = right.into_descriptor();
    check_eq!(cops::system::file::write(descriptor.raw(), b"x").map(drop), Err(Errno::EINVAL));
    check!(!receiver.try_wait());
    Ok(())
}

pub async fn from_coroutine_to_coroutine() -> Outcome {
    let receiver = must!(Receiver::new());
    let right = must!(receiver.grant());
    for _ in 0..50 {
        must!(right.send());
        signalled(&receiver).await?;
    }
    // Several signals are one, and an early one is kept.
    must!(right.send());
    must!(right.send());
    check!(receiver.try_wait());
    check!(!receiver.try_wait());
    // A signal while a coroutine of another priority waits.
    let waiting = cops::spawn_at(Priority::HIGHEST, async move {
        for _ in 0..50 {
            receiver.wait().await;
        }
        receiver
    });
    let mut sent = 0;
    while !waiting.is_finished() {
        must!(right.send());
        cops::yield_now().await;
        sent += 1;
        check!(sent < 1_000_000);
    }
    check!(sent >= 50);
    drop(must!(waiting.await));
    check_eq!(right.send(), Err(Errno::EPIPE));
    Ok(())
}

/// Runs one of two coroutines that answer each other, `rounds` times; each waits at its own receiver.
async fn play(receiver: Receiver, right: SendRight, rounds: u32, begins: bool) -> Result<u32, Errno> {
    for round in 0..rounds {
        if begins || round > 0 {
            right.send()?;
        }
        receiver.wait().await;
    }
    if !begins {
        right.send()?;
    }
    Ok(rounds)
}

pub async fn between_workers() -> Outcome {
    must!(cops::alloc_cpu(1));
    for _ in 0..3 {
        let (one, two) = (must!(Receiver::new()), must!(Receiver::new()));
        let (to_one, to_two) = (must!(one.grant()), must!(two.grant()));
        let first = cops::spawn(play(one, to_two, 300, true));
        let second = cops::spawn(play(two, to_one, 300, false));
        check_eq!(must!(must!(cops::timeout(LIMIT, first).await)), Ok(300));
        check_eq!(must!(must!(cops::timeout(LIMIT, second).await)), Ok(300));
    }
    // A worker that is busy for long is interrupted.
    let receiver = must!(Receiver::new());
    let right = must!(receiver.grant());
    let heard = Arc::new(AtomicU32::new(0));
    let hearing = heard.clone();
    let listening = cops::spawn_at(Priority::HIGHEST, async move {
        receiver.wait().await;
        hearing.store(1, Ordering::Release);
    });
    let sending = cops::spawn_at(Priority::LOWEST, async move { right.send() });
    let start = cops::time::Instant::now();
    while heard.load(Ordering::Acquire) == 0 {
        core::hint::spin_loop();
        // One hart, one of whose workers never pauses: the other one runs by its slices.
        check!(start.elapsed() < LIMIT);
        cops::yield_now().await;
    }
    must!(listening.await);
    check_eq!(must!(sending.await), Ok(()));
    Ok(())
}

pub async fn between_processes() -> Outcome {
    let receiver = must!(Receiver::new());
    let right = must!(receiver.grant());
    let child = must!(
        Command::new(OWN_PATH)
            .argument("--act")
            .argument("answer-interrupts")
            .argument("200")
            .descriptor(0, right.into_descriptor())
            .spawn()
    );
    // The child has granted a right before it signals for the first time.
    signalled(&receiver).await?;
    let back = must!(SendRight::open(child.number(), 1));
    for _ in 0..200 {
        must!(back.send());
        signalled(&receiver).await?;
    }
    check_eq!(wait(&child).await, Some(Ok(Ending::Exited(0))));
    // The child is gone, and so is its receiver.
    check_eq!(back.send(), Err(Errno::EPIPE));
    Ok(())
}

/// Runs as the other side of [`between_processes`]: descriptor 0 is a right.
pub async fn answer(rounds: u32) -> i32 {
    let right = SendRight::from_descriptor(Descriptor::from_raw(0));
    let Ok(receiver) = Receiver::new() else { return 1 };
    if receiver.identity() != 1 || receiver.grant_to(cops::process::parent()).is_err() || right.send().is_err() {
        return 2;
    }
    for _ in 0..rounds {
        receiver.wait().await;
        if right.send().is_err() {
            return 3;
        }
    }
    0
}

/// Sends through descriptor 0 until that fails, with a pause after each or without any; returns the error's number.
pub async fn send_until_error(pause: Option<Duration>) -> i32 {
    let right = SendRight::from_descriptor(Descriptor::from_raw(0));
    loop {
        if let Err(error) = right.send() {
            return error.number().into();
        }
        if let Some(pause) = pause {
            cops::sleep(pause).await;
        }
    }
}

pub async fn a_flooded_receiver_goes_on() -> Outcome {
    let receiver = must!(Receiver::new());
    let mut children = Vec::new();
    for _ in 0..3 {
        let command = Command::new(OWN_PATH).argument("--act").argument("flood");
        children.push(must!(command.descriptor(0, must!(receiver.grant()).into_descriptor()).spawn()));
    }
    signalled(&receiver).await?;
    // In one poll, and between polls.
    let mut sum = 0u64;
    for turn in 0..2_000_000u64 {
        sum = core::hint::black_box(sum.wrapping_add(turn));
    }
    check_eq!(sum, 1_999_999 * 1_000_000);
    for _ in 0..10 {
        cops::sleep(Duration::from_millis(2)).await;
        signalled(&receiver).await?;
    }
    must!(receiver.revoke_all());
    for child in &children {
        check_eq!(wait(child).await, Some(Ok(Ending::Exited(Errno::EPERM.number() as u8))));
    }
    Ok(())
}

/// Exit statuses of [`send_and_count`] that are no error's number.
const NO_HANDLER: i32 = 201;
const INTERRUPTED: i32 = 202;

/// An act: sends through descriptor 0 until that fails, and returns the error's number, or [`INTERRUPTED`] if it was
/// interrupted itself meanwhile.
pub fn send_and_count() -> i32 {
    static INTERRUPTS: AtomicU32 = AtomicU32::new(0);
    extern "C" fn handler(_: u64) {
        INTERRUPTS.fetch_add(1, Ordering::Relaxed);
    }
    let right = SendRight::from_descriptor(Descriptor::from_raw(0));
    // SAFETY: the handler accesses nothing but its own counter, and the process makes no asynchronous call.
    if unsafe { cops::system::interrupt::set_handler(handler, || 0) }.is_err() {
        return NO_HANDLER;
    }
    loop {
        match right.send() {
            Ok(()) => {}
            Err(_) if INTERRUPTS.load(Ordering::Relaxed) != 0 => return INTERRUPTED,
            Err(error) => return error.number().into(),
        }
    }
}

/// The senders have the harts while the receiver is away, and a place in the hardware that was still open there would
/// interrupt them.
pub async fn what_comes_for_a_receiver_that_is_away_interrupts_no_other_program() -> Outcome {
    let receiver = must!(Receiver::new());
    let mut children = Vec::new();
    for _ in 0..4 {
        let command = Command::new(OWN_PATH).argument("--act").argument("send-and-count");
        children.push(must!(command.descriptor(0, must!(receiver.grant()).into_descriptor()).spawn()));
    }
    for _ in 0..20 {
        signalled(&receiver).await?;
        // Loses its hart in between, and stays ready.
        let start = cops::time::Instant::now();
        while start.elapsed() < Duration::from_millis(5) {
            core::hint::spin_loop();
        }
        // Waits.
        cops::sleep(Duration::from_millis(1)).await;
    }
    must!(receiver.revoke_all());
    for child in &children {
        check_eq!(wait(child).await, Some(Ok(Ending::Exited(Errno::EPERM.number() as u8))));
    }
    Ok(())
}

pub async fn pages_for_sending_stay_where_they_are() -> Outcome {
    use cops::system::memory;
    let receiver = must!(Receiver::new());
    let right = must!(receiver.grant());
    must!(right.send());
    signalled(&receiver).await?;
    let page = (harness::told(auxiliary::COPS_PROCESS_PAGE) - PROCESS_PAGE_OFFSET + SEND_OFFSET) as *mut u8;
    for (start, length) in [(page, 4096), (page.wrapping_sub(4096), 3 * 4096)] {
        // SAFETY: no object of this program lies there.
        let results = unsafe { [memory::unmap(start, length), memory::protect(start, length, 1)] };
        check_eq!(results, [Err(Errno::EINVAL), Err(Errno::EINVAL)]);
    }
    // A right in the place of a revoked one is not the revoked one.
    drop(right);
    for _ in 0..100 {
        let other = must!(receiver.grant());
        must!(other.send());
        signalled(&receiver).await?;
    }
    Ok(())
}

pub async fn revoked_rights_are_worth_nothing() -> Outcome {
    let receiver = must!(Receiver::new());
    let (one, two) = (must!(receiver.grant()), must!(receiver.grant()));
    let copy = must!(one.duplicate());
    let sender = |right: SendRight| {
        let command = Command::new(OWN_PATH).argument("--act").argument("send-until-error");
        command.descriptor(0, right.into_descriptor()).spawn()
    };
    let child = must!(sender(must!(one.duplicate())));
    signalled(&receiver).await?;
    must!(one.revoke());
    check_eq!(one.send(), Err(Errno::EPERM));
    check_eq!(copy.send(), Err(Errno::EPERM));
    check_eq!(wait(&child).await, Some(Ok(Ending::Exited(Errno::EPERM.number() as u8))));
    while receiver.try_wait() {}
    check!(!receiver.try_wait());
    // The other right holds; until all are revoked.
    must!(two.send());
    signalled(&receiver).await?;
    let child = must!(sender(must!(two.duplicate())));
    signalled(&receiver).await?;
    must!(receiver.revoke_all());
    check_eq!(two.send(), Err(Errno::EPERM));
    check_eq!(wait(&child).await, Some(Ok(Ending::Exited(Errno::EPERM.number() as u8))));
    let three = must!(receiver.grant());
    while receiver.try_wait() {}
    must!(three.send());
    signalled(&receiver).await?;
    // Only the receiving process may revoke: a child that tries is refused.
    let command = Command::new(OWN_PATH).argument("--act").argument("revoke-descriptor-0");
    let child = must!(command.descriptor(0, must!(three.duplicate()).into_descriptor()).spawn());
    check_eq!(wait(&child).await, Some(Ok(Ending::Exited(Errno::EPERM.number() as u8))));
    must!(three.send());
    signalled(&receiver).await
}

/// Tries to revoke a right that another process has granted.
pub fn revoke_descriptor_0() -> i32 {
    let right = SendRight::from_descriptor(Descriptor::from_raw(0));
    right.revoke().map_or_else(|error| error.number().into(), |()| 0)
}

pub async fn ends_of_either_side() -> Outcome {
    // The worker of this receiver has its place in the hardware from now on, as far as there is one.
    let _kept = must!(Receiver::new());
    let receivers = counter(Counter::InterruptReceivers)?;
    let places = counter(Counter::GuestFiles)?;
    for _ in 0..5 {
        // The receiver is killed while the sender has its right.
        let receiver = must!(Receiver::new());
        let right = must!(receiver.grant());
        let command = Command::new(OWN_PATH).argument("--act").argument("answer-interrupts").argument("1000000");
        let child = must!(command.descriptor(0, right.into_descriptor()).spawn());
        signalled(&receiver).await?;
        let back = must!(SendRight::open(child.number(), 1));
        must!(back.send());
        signalled(&receiver).await?;
        must!(child.kill());
        check!(wait(&child).await.is_some());
        check_eq!(back.send(), Err(Errno::EPIPE));
        check_eq!(SendRight::open(child.number(), 1).map(drop), Err(Errno::ESRCH));
        // The sender has gone; its receiver receives from others.
        let own = must!(receiver.grant());
        while receiver.try_wait() {}
        must!(own.send());
        signalled(&receiver).await?;
    }
    returns_to(Counter::InterruptReceivers, receivers).await?;
    // Another worker of this process may have made a receiver, and keeps its place until it comes to a hart again.
    returns_to(Counter::GuestFiles, places + 1).await
}

pub async fn as_many_receivers_as_there_can_be() -> Outcome {
    let mut receivers = Vec::new();
    loop {
        match Receiver::new() {
            Ok(receiver) => receivers.push(receiver),
            Err(error) => {
                check_eq!(error, Errno::EAGAIN);
                break;
            }
        }
    }
    check_eq!(receivers.len(), 62);
    let rights: Vec<SendRight> = must!(receivers.iter().map(Receiver::grant).collect::<Result<_, _>>());
    for round in 0..3 {
        for (receiver, right) in receivers.iter().zip(&rights).skip(round).step_by(3) {
            must!(right.send());
            signalled(receiver).await?;
        }
    }
    for right in &rights {
        must!(right.send());
    }
    for receiver in &receivers {
        signalled(receiver).await?;
    }
    // A dropped receiver makes room for another, which gets no signal that was meant for the first.
    must!(rights[30].send());
    drop(receivers.swap_remove(30));
    let again = must!(Receiver::new());
    check!(!again.try_wait());
    check_eq!(rights[30].send(), Err(Errno::EPIPE));
    must!(must!(again.grant()).send());
    signalled(&again).await
}

pub async fn more_receiving_processes_than_the_hardware_serves() -> Outcome {
    let receiver = must!(Receiver::new());
    let right = must!(receiver.grant());
    let mut children = Vec::new();
    for _ in 0..20 {
        let command = Command::new(OWN_PATH).argument("--act").argument("answer-interrupts").argument("10");
        children.push(must!(command.descriptor(0, must!(right.duplicate()).into_descriptor()).spawn()));
    }
    // Each needs ten signals that it sees; signals in quick succession are one.
    let mut open: Vec<SendRight> = Vec::new();
    for child in &children {
        let start = cops::time::Instant::now();
        let right = loop {
            match SendRight::open(child.number(), 1) {
                Ok(right) => break right,
                Err(error) => check_eq!(error, Errno::EPERM),
            }
            check!(start.elapsed() < LIMIT);
            cops::sleep(Duration::from_millis(1)).await;
        };
        open.push(right);
    }
    for (child, right) in children.iter().zip(&open) {
        let ended = wait(child);
        let sending = async {
            while right.send().is_ok() {
                cops::sleep(Duration::from_micros(500)).await;
            }
            core::future::pending::<()>().await
        };
        match cops::select::select(pin!(ended), pin!(sending)).await {
            Either::First(ending) => check_eq!(ending, Some(Ok(Ending::Exited(0)))),
            Either::Second(()) => return Err("sending went on for ever".into()),
        }
    }
    Ok(())
}

/// An act: claims from an interrupt file that it does not have, like a handler that has lost its file meanwhile.
pub fn claim_without_file() -> i32 {
    let claimed: i64;
    // SAFETY: no identity is pending.
    unsafe { core::arch::asm!("csrrw {0}, 0x15c, x0", "csrrw x0, 0x15c, x0", inlateout(reg) 7i64 => claimed) };
    i32::from(claimed != 0)
}

pub async fn a_program_without_its_interrupt_file_claims_nothing() -> Outcome {
    let is_virtualised = cops::system::interrupt::is_virtualised();
    // User mode has no such register.
    let ending = if is_virtualised { Ending::Exited(0) } else { Ending::Killed(4) };
    check_eq!(ending_of_act("claim-without-file").await?, ending);
    Ok(())
}

/// Numbers that are no index of a right of the program in [`send_without_right`].
const NO_INDEXES: [usize; 12] = [0, 2, 64, 65, 511, 512, 513, 1 << 16, 1 << 31, 1 << 32, 1 << 61, usize::MAX];

/// An act: sends by the instruction with a number, beside a right of its own that it has used, with index 1.
pub async fn send_without_right(argument: Option<&str>) -> i32 {
    let Some(index) = argument.and_then(|text| text.parse::<usize>().ok()) else { return 1 };
    let Ok(receiver) = Receiver::new() else { return 2 };
    let Ok(right) = receiver.grant() else { return 3 };
    if right.send().is_err() || signalled(&receiver).await.is_err() {
        return 4;
    }
    // SAFETY: the process ends here. The instruction is `uipi_send`.
    unsafe { core::arch::asm!(".insn r 0x7b, 6, 0, x0, {}, x0", in(reg) index, out("a0") _, options(nostack)) };
    0
}

pub async fn an_index_without_a_right_ends_a_program() -> Outcome {
    for index in NO_INDEXES {
        let command = Command::new(OWN_PATH).argument("--act").argument("send-without-right");
        let child = must!(command.argument(&alloc::format!("{index}")).spawn());
        let ending = wait(&child).await;
        check!(ending == Some(Ok(Ending::Killed(4))), "{index}: {ending:?}");
    }
    Ok(())
}

/// An act: makes every vector pending in its own slot, again and again, and deactivates it.
pub async fn misuse_own_slot() -> i32 {
    let Ok(receiver) = Receiver::new() else { return 1 };
    let Ok(right) = receiver.grant() else { return 2 };
    for _ in 0..1000 {
        // SAFETY: the handler ignores identities without a receiver. The instruction is `uipi_write`.
        unsafe { core::arch::asm!(".insn r 0x7b, 6, 2, x0, {}, x0", in(reg) u64::MAX, options(nostack)) };
    }
    if signalled(&receiver).await.is_err() {
        return 3;
    }
    for _ in 0..100 {
        // SAFETY: the slot is the worker's own, and active again when the worker next comes to a hart. The instruction
        // is `uipi_deactivate`.
        unsafe { core::arch::asm!(".insn r 0x7b, 6, 4, x0, x0, x0", options(nostack)) };
        if right.send().is_err() {
            return 4;
        }
        cops::sleep(Duration::from_micros(100)).await;
        if signalled(&receiver).await.is_err() {
            return 5;
        }
    }
    0
}

pub async fn a_slot_that_its_owner_misuses_is_only_its_own() -> Outcome {
    let receiver = must!(Receiver::new());
    let right = must!(receiver.grant());
    let ending = if cops::system::interrupt::has_slots() { Ending::Exited(0) } else { Ending::Killed(4) };
    check_eq!(ending_of_act("misuse-own-slot").await?, ending);
    check!(!receiver.try_wait());
    must!(right.send());
    signalled(&receiver).await
}

pub async fn nonsense_in_the_interrupt_words() -> Outcome {
    // SAFETY: the page is mapped, and all its words are atomic.
    let page = unsafe { &*(harness::told(auxiliary::COPS_PROCESS_PAGE) as *const ProcessPage) };
    let receiver = must!(Receiver::new());
    let right = must!(receiver.grant());
    for round in 0..100u64 {
        page.interrupts[0].0.store(u64::MAX << (round % 64), Ordering::Relaxed);
        must!(right.send());
        signalled(&receiver).await?;
    }
    Ok(())
}

pub async fn a_fault_in_the_handler_ends_only_its_process() -> Outcome {
    check_eq!(ending_of_act("faulting-handler").await?, Ending::Killed(11));
    check_eq!(ending_of_act("handler-without-stack").await?, Ending::Killed(11));
    from_coroutine_to_coroutine().await
}

/// An act: its handler reads an unmapped address.
pub async fn faulting_handler() -> i32 {
    extern "C" fn handler(_: u64) {
        // SAFETY: the process ends here.
        unsafe { (0x18 as *const u64).read_volatile() };
    }
    let Ok(receiver) = Receiver::new() else { return 1 };
    let Ok(right) = receiver.grant() else { return 2 };
    // SAFETY: the handler changes nothing.
    if unsafe { cops::system::interrupt::set_handler(handler, || 0) }.is_err() || right.send().is_err() {
        return 3;
    }
    cops::sleep(Duration::from_secs(1)).await;
    4
}

/// An act: is interrupted while its stack pointer names no memory.
pub async fn handler_without_stack() -> i32 {
    let Ok(receiver) = Receiver::new() else { return 1 };
    let Ok(right) = receiver.grant() else { return 2 };
    let right = right.into_descriptor();
    // SAFETY: the process ends here, in the kernel or at its next store to the stack.
    unsafe {
        core::arch::asm!(
            "li sp, 0x1000",
            "ecall",
            "2: j 2b",
            in("a7") abi_unix::SystemCall::InterruptSend as usize,
            in("a0") right.raw(),
            options(noreturn),
        )
    }
}

pub async fn wakers_of_combinators() -> Outcome {
    let (one, two) = (must!(Receiver::new()), must!(Receiver::new()));
    let right = must!(two.grant());
    for _ in 0..20 {
        let sender = must!(right.duplicate());
        let sending = cops::spawn(async move {
            cops::yield_now().await;
            sender.send()
        });
        let either = async { cops::select::select(pin!(one.wait()), pin!(two.wait())).await };
        check!(matches!(must!(cops::timeout(LIMIT, either).await), Either::Second(())));
        check_eq!(must!(sending.await), Ok(()));
    }
    // Dropping a wait loses no signal.
    check!(cops::timeout(Duration::from_millis(1), two.wait()).await.is_err());
    must!(right.send());
    signalled(&two).await?;
    Ok(())
}

/// Returns the number of kernel entries of programs, without those of the kernel's own timer.
fn entries() -> Result<u64, alloc::string::String> {
    let counters = must!(cops::system::system::counters());
    Ok(counters[Counter::Traps as usize] - counters[Counter::TimerTraps as usize])
}

/// Each `entries` after the first is an entry itself.
const OWN_ENTRIES: u64 = 1;

/// Returns the number of user interrupts to send: more where the hardware delivers them; through the kernel they take
/// longer.
fn many() -> u64 {
    if cops::system::interrupt::is_in_hardware() { 100_000 } else { 2_000 }
}

/// Checks the kernel's part in `sent` user interrupts.
fn check_entries(entries: u64, sent: u64) -> Outcome {
    if cops::system::interrupt::is_in_hardware() {
        check!(entries == 0, "{sent} user interrupts entered the kernel {entries} times");
    } else {
        check!(entries >= sent, "{sent} user interrupts through the kernel entered it only {entries} times");
    }
    Ok(())
}

pub async fn on_one_hart_without_the_kernel() -> Outcome {
    let receiver = must!(Receiver::new());
    let right = must!(receiver.grant());
    must!(right.send());
    signalled(&receiver).await?;
    // Other processes of the machine enter the kernel too: the suite, when a time limit of it passes.
    let mut result = Ok(());
    for _ in 0..5 {
        let before = entries()?;
        for _ in 0..many() {
            must!(right.send());
            while !receiver.try_wait() {
                core::hint::spin_loop();
            }
        }
        result = check_entries(entries()? - before - OWN_ENTRIES, many());
        if result.is_ok() {
            break;
        }
    }
    result
}

pub async fn between_harts_without_the_kernel() -> Outcome {
    if cops::system::start::auxiliary_value(abi_unix::types::auxiliary::COPS_HARTS) == Some(1) {
        // Two spinning workers on one hart would alternate at the tick.
        return on_one_hart_without_the_kernel().await;
    }
    must!(cops::alloc_cpu(1));
    let (one, two) = (must!(Receiver::new()), Arc::new(core::sync::atomic::AtomicU64::new(0)));
    let (to_one, finished) = (must!(one.grant()), two.clone());
    // The other worker makes its own receiver, in a coroutine that must run there; this one spins until it does.
    let started = Arc::new(AtomicU32::new(0));
    // Fewer rounds: an emulator with fewer processors than harts takes a millisecond for each.
    let (starting, rounds) = (started.clone(), 200);
    let (sender, grants) = cops::channel::bounded(1);
    let other = cops::spawn(async move {
        let receiver = Receiver::new()?;
        if sender.try_send(receiver.grant()?).is_err() {
            return Err(Errno::EPIPE);
        }
        starting.store(1, Ordering::Release);
        loop {
            while !receiver.try_wait() {
                if finished.load(Ordering::Acquire) != 0 {
                    return Ok(());
                }
                core::hint::spin_loop();
            }
            to_one.send()?;
        }
    });
    let start = cops::time::Instant::now();
    while started.load(Ordering::Acquire) == 0 {
        check!(start.elapsed() < LIMIT, "the other worker does not start");
        core::hint::spin_loop();
    }
    let Ok(to_two) = grants.try_receive() else { return Err("there is no right".into()) };
    let mut result = Ok(());
    for _ in 0..3 {
        // The first stores determine the pages.
        must!(to_two.send());
        while !one.try_wait() {
            core::hint::spin_loop();
        }
        let before = entries()?;
        for round in 0..rounds {
            must!(to_two.send());
            while !one.try_wait() {
                core::hint::spin_loop();
            }
            if round % 1000 == 0 && start.elapsed() > 2 * LIMIT {
                return Err(alloc::format!("only {round} rounds in {} s", start.elapsed().as_secs()));
            }
        }
        // This takes long on a busy computer, and the suite's own timers enter the kernel meanwhile.
        let entries = entries()? - before - OWN_ENTRIES;
        result = check_entries(if entries < rounds / 20 { 0 } else { entries }, 2 * rounds);
        if !cops::system::interrupt::is_in_hardware() {
            result = check_entries(entries, 2 * rounds);
        }
        if result.is_ok() || start.elapsed() > LIMIT {
            break;
        }
    }
    two.store(1, Ordering::Release);
    check_eq!(must!(other.await), Ok(()));
    result
}
