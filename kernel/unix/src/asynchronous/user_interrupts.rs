//! User interrupts: the rights to interrupt workers, and the delivery of interrupts.
//!
//! A *receiver* is a worker and an identity, a number of the process's choice by which its handler tells interrupts
//! apart. A *right* allows sending to one receiver. Both are open files, so that Unix's rules for descriptors hold for
//! them: closing gives a right up, `spawn` passes it on, the end of a process closes all. In addition to Unix, the
//! granting side keeps control: it can revoke one right or all of them, however many copies there are, and its own end
//! ends them too.
//!
//! A right for another process is recorded with the receiver and fetched by that process (`interrupt_open`), so that no
//! process puts descriptors into another's table. It names the process itself and not its number, which may be another
//! process's later.
//!
//! # Ownership
//!
//! The descriptor owns the [`Receiver`]; rights have weak references to it, and it has one to its worker. So a sender
//! keeps nothing of the receiving process alive, and authority does not outlive its object: when the receiver is gone,
//! sending fails with `EPIPE`.
//!
//! # Delivery
//!
//! Sending sets a bit in the worker's word of the process page, and then makes the worker look ([`Worker::raise`]): a
//! sleeping worker is woken; a running one is interrupted, in the way of its *back end*. In the back end `kernel`,
//! which every machine has, the return to user mode is redirected to the handler. The word is the process's own memory:
//! only its own handler reads the bits that it writes there.
//!
//! NO-HANDLER: a worker without a handler is not interrupted, and what comes for it is there for its next handler. The
//! kernel delivers nothing to it meanwhile. In hardware, what is pending already, or is sent by another program, stays
//! pending too, since the worker's own enabling bits are cleared, which its next handler sets; to lower the line
//! instead would race with senders on other harts, who raise it at any time.
//!
//! # The back end `imsic`
//!
//! The process runs virtualised ([`usermode::Kind`]), so that it has supervisor registers of its own, and a worker with
//! receivers has a *guest interrupt file* of the hart on which it runs. Sending is storing an identity to the file's
//! page; a process that may send has that page in its address space, at [`SEND_OFFSET`]. Neither side enters the
//! kernel. The kernel's part is to keep the two sides right:
//!
//! * **Mapping of sender pages.** The page is mapped for a process that has a right and requests the page, and taken
//!   out again, with a flush on every hart, when the right is revoked or closed, when the receiver or the sender ends,
//!   and when the file changes. A sender may store any identity: it is a hint.
//! * **Page faults on sender pages.** The kernel acts for the faulting store as the call does ([`store_to_page`]). So
//!   sending works whether or not the receiver has a file, and programs need not know.
//! * **Receivers that do not run.** An interrupt stays pending in the file, which is *watched* then, so that it
//!   interrupts the kernel, and the worker is woken ([`on_guest_files`]). This happens once: until the worker has taken
//!   the interrupt or sleeps again, its file is not watched any more. Two workers that wake each other would otherwise
//!   take turns without executing anything.
//! * **Workers that come to another hart.** The worker takes a file there, if one is free, and leaves the old one as an
//!   *orphan*: first its pages are unmapped, so that no store reaches it any more, then its own hart takes pending
//!   interrupts out of it and passes them on ([`drain_orphans`]). Nothing is lost, and nothing comes twice.
//! * **No free file.** The worker has none, and interrupts for it come through the kernel. If it was just claiming from
//!   the file that it had, it finds nothing more ([`complete_refused`]).
//!
//! The kernel itself interrupts a virtualised worker that runs on another hart through the file too; a worker without a
//! file by calling it back and giving it the supervisor's software interrupt.
//!
//! # The back end `uintc`
//!
//! A worker with a handler has the registers of the N extension while it is on a hart, and with receivers a *slot* of
//! the controller UINTC. A process that has requested to send has a *sender table*, memory that no program can reach;
//! an entry of it is the right to send one vector to one slot ([`slots`]). Neither side enters the kernel. A worker
//! keeps its slot on every hart, and no sender can send another vector than its receiver's.
//!
//! UINTC interrupts nobody for a slot whose worker is away, and its raised line may be another program's. So entries
//! are valid only while a sent vector is noticed:
//!
//! * **AWAY-INVALID.** While a worker is on no hart, the entries that reach its slot are not valid, unless it is
//!   *told*: it is ready, will be on a hart before it sleeps, and finds in its slot what comes meanwhile. A sender's
//!   instruction is refused otherwise; the kernel wakes the worker, which is told from then on, and entries are valid
//!   again ([`reach`]).
//! * **Leaving the hart.** A worker that stays ready is told. For one that is going to wait, first the slot becomes
//!   inactive, then the entries are cleared, in all tables, then every send that had read one before has ended
//!   ([`slots::finish`]), then the kernel takes the vectors that have come, and a worker with some does not sleep.
//! * **Revocation and ends** make entries not valid in the same way. When that returns, nothing comes through them; so
//!   a slot that is given back has no vector that was meant for its former owner.
//! * **Refused instructions.** The kernel does for a sender what it does for a store ([`complete_refused`]), and a
//!   handler without a slot finds no vector. Every other refusal is a mistake of the program.

pub(crate) mod back_end;
mod slots;

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use abi_queue::pages::{PAGE_SIZE, SEND_OFFSET, SEND_PAGES};
use abi_unix::types::Status;
use abi_unix::{Counter, Errno, errno};
use drivers::uintc::{self, Slot};
use filesystem::Access;
use hal_api::{
    HartSet, MAXIMUM_HARTS, Machine as _, RefusedUipi, Trap, UserContext, UserLevel as _, Virtualisation as _,
};
use memory::space::Placement;
use memory::sv39::Protection;
use platform::{Machine, Pending, guest_page, println};
use spin::Mutex;

use self::back_end::BackEnd;
pub(crate) use self::slots::SenderTable;
use self::slots::finish;
use crate::files::file::{self, FileOperations, OpenFile, status_of_anonymous};
use crate::machine;
use crate::observing::counters;
use crate::process::exit_status::Ending;
use crate::process::worker::Worker;
use crate::process::{Process, table};

/// The bit that announces completions.
pub(crate) const COMPLETIONS: u64 = 1;
/// Largest identity of a receiver.
pub(crate) const LARGEST_IDENTITY: usize = 62;
/// Number of rights that one receiver keeps for other processes to fetch; more are `ENOSPC`.
const MAXIMUM_GRANTS: usize = 256;

/// Identity by which the kernel makes a handler look at its word.
const KERNEL_IDENTITY: u32 = 63;
/// Identities that are enabled in a file: all below 64 but 0, which does not exist.
const IDENTITIES: u64 = !1;
/// Greatest number of guest interrupt files of a hart that are used, plus one, because there is no file 0.
const FILES: usize = 8;

/// The interrupts of a worker.
///
/// In the back end `kernel` the handler is entered as if it had been called from the interrupted instruction, on the
/// same stack, with four words below the stack pointer; it preserves all registers but `a7` and `sp` and ends with the
/// `interrupt_return` call. It is not entered while it runs, nor while the program counter lies in the scheduler's
/// image, whose locks the handler may need.
#[derive(Default)]
pub(crate) struct InterruptLine {
    /// Address of the handler; 0 for none.
    handler: AtomicUsize,
    /// Set once there has been a handler: the worker may be at any place of it, also when it is removed.
    had_handler: AtomicBool,
    /// Set if there is something to deliver; the process page tells the interrupts.
    pending: AtomicBool,
    /// Set while the handler runs (back end `kernel`).
    active: AtomicBool,
    /// Number of handlers that have gone on to other code and will return later.
    left: AtomicUsize,
    /// Number of the worker's receivers.
    receivers: AtomicUsize,
    /// Place in the hardware where its interrupts arrive. The kernel holds the lock when it sends there.
    arrival: Mutex<Arrival>,
    /// Value of the program's count of hardware interrupts at the last reading.
    counted: AtomicU64,
}

#[derive(Default)]
struct Arrival {
    place: Option<Arrives>,
    /// Set while its slot is active, because the worker is on a hart (back end `uintc`).
    is_on_hart: bool,
    /// Set if the worker is away and will be on a hart before it sleeps (AWAY-INVALID).
    is_told: bool,
    /// Places where its page is mapped, or where entries for its slot are valid.
    mappings: Vec<SenderMapping>,
}

/// A place in the hardware where a worker's interrupts arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrives {
    /// Back end `imsic`.
    File(GuestFile),
    /// Back end `uintc`.
    Slot(Slot),
}

/// A guest interrupt file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GuestFile {
    hart: usize,
    file: usize,
}

/// A page of a sending process, or an entry of its sender table.
struct SenderMapping {
    process: Weak<Process>,
    page: usize,
    right: Weak<Right>,
}

/// Use of a guest interrupt file. A file is only ever taken by its own hart.
enum FileUse {
    Free,
    /// `told`: an interrupt came while the worker did not run, and the worker was woken for it.
    Used {
        worker: Weak<Worker>,
        told: bool,
    },
    /// No store reaches it any more; its pending interrupts are for this worker.
    Orphan(Weak<Worker>),
}

static FILE_USES: [Mutex<[FileUse; FILES]>; MAXIMUM_HARTS] =
    [const { Mutex::new([const { FileUse::Free }; FILES]) }; MAXIMUM_HARTS];
/// Set if a hart has orphans.
static HAS_ORPHANS: [AtomicBool; MAXIMUM_HARTS] = [const { AtomicBool::new(false) }; MAXIMUM_HARTS];

/// Chooses the back end by the word of the boot command line: `kernel`, `imsic`, `uintc`, or `auto`, which is the first
/// of `uintc` and `imsic` that the machine has.
pub(crate) fn start(choice: Option<&str>, harts: usize) {
    back_end::set(choose(choice.unwrap_or("kernel"), harts));
}

fn choose(choice: &str, harts: usize) -> BackEnd {
    match choice {
        "uintc" | "auto" if slots::start() => return BackEnd::Uintc,
        "uintc" => {
            println!(
                "user interrupts: this machine has no controller of user interrupts; they come through the kernel"
            );
            return BackEnd::Kernel;
        }
        _ => {}
    }
    machine::handle_with(on_interrupt);
    let files = Machine::guest_files();
    let pages = (0..harts).filter_map(|hart| Some(guest_page(hart, 1)?..guest_page(hart, files)? + PAGE_SIZE as u64));
    let mut ranges = [const { 0..0 }; MAXIMUM_HARTS];
    let mut count = 0;
    for (range, pages) in ranges.iter_mut().zip(pages) {
        *range = pages;
        count += 1;
    }
    let permitted = memory::sv39::permit_devices(&ranges[..count]).is_ok();
    let possible = files > 0 && permitted;
    match choice {
        "imsic" | "auto" if possible => return BackEnd::Imsic,
        "kernel" | "auto" => {}
        "imsic" => println!("user interrupts: this machine has no guest interrupt files; they come through the kernel"),
        other => println!(
            "user interrupts: `{other}` is none of kernel, imsic, uintc and auto; they come through the kernel"
        ),
    }
    BackEnd::Kernel
}

/// Handles interrupts that came in guest interrupt files, at every look.
fn on_interrupt(pending: Pending) {
    if pending.guest {
        on_guest_files();
    }
    drain_orphans();
}

/// Words at the stack pointer of an interrupted program: program counter, `a7`, stack pointer, and a word of padding.
type Frame = [u64; 4];

impl InterruptLine {
    /// Sets the handler; 0 removes it.
    fn set_handler(&self, entry: usize) {
        self.handler.store(entry, Ordering::Relaxed);
        if entry != 0 {
            self.had_handler.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether there is a handler.
    pub(crate) fn has_handler(&self) -> bool {
        self.handler.load(Ordering::Relaxed) != 0
    }

    /// Records that there is something to deliver. The word of the process page was written before.
    pub(crate) fn set_pending(&self) {
        self.pending.store(true, Ordering::Release);
    }

    /// Returns whether there is something to deliver.
    #[inline(always)]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Forgets everything, for another program.
    pub(crate) fn reset(&self) {
        self.set_handler(0);
        self.had_handler.store(false, Ordering::Relaxed);
        self.pending.store(false, Ordering::Relaxed);
        self.active.store(false, Ordering::Relaxed);
        self.left.store(0, Ordering::Relaxed);
    }

    /// Performs the `interrupt_leave` call.
    pub(crate) fn leave_handler(&self) -> Result<usize, Errno> {
        if !self.active.swap(false, Ordering::Relaxed) {
            return Err(Errno::EINVAL);
        }
        self.left.fetch_add(1, Ordering::Relaxed);
        Ok(0)
    }

    /// Makes the program go on in its handler if that is possible now.
    pub(crate) fn deliver(&self, process: &Process, context: &mut UserContext) {
        let handler = self.handler.load(Ordering::Relaxed);
        if back_end::is_in_hardware() {
            if handler != 0 {
                self.pending.store(false, Ordering::Relaxed);
                counters::count(Counter::UserInterrupts);
                match back_end::present() {
                    BackEnd::Uintc => Machine::raise_user_interrupt(),
                    _ if self.notify_directly() => {}
                    _ => Machine::notify_virtualised(),
                }
            }
            return;
        }
        if handler == 0 || self.active.load(Ordering::Relaxed) || process.shared.is_in_image(context.pc as usize) {
            return;
        }
        self.pending.store(false, Ordering::Relaxed);
        let stack = context.stack();
        let frame: Frame = [context.pc, context.register(17), stack, 0];
        let place = stack.wrapping_sub(size_of::<Frame>() as u64) & !15;
        let mut bytes = [0; size_of::<Frame>()];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(frame) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        if process.copy_out(place as usize, &bytes).is_err() {
            println!("[{}] killed: no stack for a user interrupt at sp {stack:#x}", process.id);
            process.end(Ending::Killed(abi_unix::types::signal::SEGV as u8));
            return;
        }
        self.active.store(true, Ordering::Relaxed);
        context.set_register(2, place);
        context.pc = handler as u64;
        counters::count(Counter::UserInterrupts);
        crate::observing::trace::of_process(abi_unix::trace::Kind::UserInterrupt, process.id, 0, 0);
    }

    /// Interrupts a worker through its guest interrupt file, or through its slot while it is on a hart; returns `false`
    /// if there is neither.
    pub(crate) fn notify_directly(&self) -> bool {
        let arrival = self.arrival.lock();
        match arrival.place {
            Some(Arrives::File(GuestFile { hart, file })) => platform::notify_guest_file(hart, file, KERNEL_IDENTITY),
            // The worker cannot leave the hart meanwhile, since that needs the lock, and takes the vector then.
            Some(Arrives::Slot(slot)) if arrival.is_on_hart => slots::send(slot, KERNEL_IDENTITY),
            _ => return false,
        }
        true
    }

    /// Performs the `interrupt_return` call: the program goes on where it was interrupted.
    pub(crate) fn return_to_interrupted(&self, process: &Process, context: &mut UserContext) -> Result<(), Errno> {
        let is_active = self.active.load(Ordering::Relaxed);
        let left = self.left.load(Ordering::Relaxed);
        if !is_active && left == 0 {
            return Err(Errno::EINVAL);
        }
        let mut bytes = [0; size_of::<Frame>()];
        process.copy_in(context.stack() as usize, &mut bytes)?;
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at * 8 + i]));
        // The words there are the program's own affair: a wrong address faults in user mode.
        context.pc = word(0) & !1;
        context.set_register(17, word(1));
        context.set_register(2, word(2));
        if is_active {
            self.active.store(false, Ordering::Relaxed);
        } else {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Brings a worker to a hart, for which it has its own interrupts if they come in hardware.
pub(crate) fn arrive(worker: &Arc<Worker>, context: &UserContext, hart: usize) {
    match back_end::present() {
        BackEnd::Kernel => {}
        BackEnd::Imsic => arrive_virtualised(worker, context, hart),
        BackEnd::Uintc => arrive_armed(worker, context, hart),
    }
}

/// Takes a worker, which `stays_ready` if it waits for nothing, from the hart.
pub(crate) fn depart(worker: &Arc<Worker>, context: &mut UserContext, hart: usize, stays_ready: bool) {
    match back_end::present() {
        BackEnd::Kernel => return,
        BackEnd::Imsic => depart_virtualised(worker, context, hart, stays_ready),
        BackEnd::Uintc => depart_armed(worker, context, hart, stays_ready),
    }
    if worker.is_thread() {
        return;
    }
    let claimed = worker.process.shared.hardware_interrupts(worker.index());
    let before = worker.line.counted.swap(claimed, Ordering::Relaxed);
    counters::add(Counter::HardwareInterrupts, claimed.wrapping_sub(before));
}

/// Gives a virtualised worker a guest interrupt file if it has receivers, and loads its supervisor registers.
fn arrive_virtualised(worker: &Arc<Worker>, context: &UserContext, hart: usize) {
    let line = &worker.line;
    let mut file = 0;
    if line.receivers.load(Ordering::Relaxed) > 0 {
        file = settle(worker, hart);
    } else if has_place(worker) {
        // Its last receiver is gone, and no interrupt may wait in a file that is not the running program's.
        give_up(worker);
    }
    Machine::load_supervisor(&context.supervisor, file);
    watch(hart, file);
    if file != 0 && context.supervisor.notified != 0 {
        // Notifications of the kernel from the time without a file come through the file too.
        line.notify_directly();
    }
}

fn depart_virtualised(worker: &Arc<Worker>, context: &mut UserContext, hart: usize, stays_ready: bool) {
    Machine::save_supervisor(&mut context.supervisor);
    let place = worker.line.arrival.lock().place;
    if let Some(Arrives::File(place)) = place
        && let FileUse::Used { told, .. } = &mut FILE_USES[hart].lock()[place.file]
    {
        // The file is the hart's: the worker has just settled there. It may not have handled the interrupt of which it
        // was told.
        *told &= stays_ready && Machine::pending_guest_files() & 1 << place.file != 0;
    }
    watch(hart, 0);
}

/// Gives a worker a slot if it has receivers, loads its registers and its rights, and lets the slot interrupt the hart.
fn arrive_armed(worker: &Arc<Worker>, context: &UserContext, hart: usize) {
    let line = &worker.line;
    let mut slot = None;
    if line.receivers.load(Ordering::Relaxed) > 0 {
        slot = take_slot(worker);
    } else if has_place(worker) {
        give_up(worker);
    }
    let table = worker.process.sender_table.get();
    if slot.is_none() && table.is_none() && !line.had_handler.load(Ordering::Relaxed) {
        return;
    }
    slots::arm(hart, &context.supervisor, slot, table);
    if let Some(slot) = slot {
        let mut arrival = line.arrival.lock();
        arrival.is_on_hart = true;
        arrival.is_told = false;
        slots::activate(slot, hart);
    }
}

fn depart_armed(worker: &Arc<Worker>, context: &mut UserContext, hart: usize, stays_ready: bool) {
    let (place, is_told) = {
        let mut arrival = worker.line.arrival.lock();
        // From here on the kernel sends nothing to the slot, and no entry becomes valid unless the worker is told.
        arrival.is_on_hart = false;
        arrival.is_told = stays_ready && worker.line.has_handler();
        (arrival.place, arrival.is_told)
    };
    if let Some(Arrives::Slot(slot)) = place {
        slots::deactivate(slot);
        if !is_told {
            unmap_all(worker);
            let vectors = slots::take_vectors(slot);
            if vectors != 0 {
                worker.raise(vectors & !(1 << KERNEL_IDENTITY));
            }
        }
    }
    slots::disarm(hart, &mut context.supervisor);
}

/// Returns the worker's slot; `None` if it has none and none is free.
fn take_slot(worker: &Worker) -> Option<Slot> {
    let mut arrival = worker.line.arrival.lock();
    if let Some(Arrives::Slot(slot)) = arrival.place {
        return Some(slot);
    }
    let slot = slots::take()?;
    counters::count(Counter::GuestFiles);
    arrival.place = Some(Arrives::Slot(slot));
    Some(slot)
}

/// Watches all files of this hart that are in use, except the running worker's and those whose workers were told.
fn watch(hart: usize, running: usize) {
    let uses = FILE_USES[hart].lock();
    let unknown = |file: usize| matches!(uses[file], FileUse::Used { told: false, .. });
    let files = (1..FILES).filter(|&file| file != running && unknown(file)).fold(0, |files, file| files | 1 << file);
    Machine::watch_guest_files(files);
}

/// Returns the worker's file on this hart, on which it is; 0 if none is free.
fn settle(worker: &Arc<Worker>, hart: usize) -> usize {
    let place = worker.line.arrival.lock().place;
    match place {
        Some(Arrives::File(place)) if place.hart == hart => return place.file,
        Some(_) => give_up(worker),
        None => {}
    }
    let file = {
        let mut uses = FILE_USES[hart].lock();
        let usable = 1..FILES.min(Machine::guest_files() + 1);
        let Some(file) = usable.into_iter().find(|&file| matches!(uses[file], FileUse::Free)) else { return 0 };
        uses[file] = FileUse::Used { worker: Arc::downgrade(worker), told: false };
        file
    };
    Machine::prepare_guest_file(file, IDENTITIES);
    counters::count(Counter::GuestFiles);
    worker.line.arrival.lock().place = Some(Arrives::File(GuestFile { hart, file }));
    file
}

/// Gives a new receiver's worker, which runs on this hart, a place in the hardware immediately.
fn settle_now(worker: &Arc<Worker>) {
    let hart = Machine::hart();
    if !back_end::is_in_hardware() || has_place(worker) {
        return;
    }
    if back_end::present() == BackEnd::Uintc {
        let Some(slot) = take_slot(worker) else { return };
        slots::receive_in(hart, slot);
        let mut arrival = worker.line.arrival.lock();
        arrival.is_on_hart = true;
        slots::activate(slot, hart);
    } else {
        let file = settle(worker, hart);
        if file == 0 {
            return;
        }
        Machine::choose_guest_file(file);
        watch(hart, file);
    }
    // Stands for interrupts that were pending without the place.
    worker.line.notify_directly();
}

/// Sets the handler of a worker, which runs on this hart; 0 removes it. With a handler the worker can use the registers
/// of its interrupts. Without one nothing interrupts it (NO-HANDLER).
pub(crate) fn set_handler(worker: &Worker, entry: usize) {
    worker.line.set_handler(entry);
    match back_end::present() {
        BackEnd::Uintc if entry == 0 => slots::disable(Machine::hart()),
        BackEnd::Uintc => slots::arm_if_needed(Machine::hart()),
        BackEnd::Imsic if entry == 0 => Machine::disable_supervisor_interrupts(),
        BackEnd::Imsic | BackEnd::Kernel => {}
    }
}

/// Takes the worker's place in the hardware away, while it is on no hart: when this returns, nothing arrives there any
/// more, and its pending interrupts will be passed on to the worker.
pub(crate) fn give_up(worker: &Arc<Worker>) {
    let place = {
        let mut arrival = worker.line.arrival.lock();
        arrival.is_told = false;
        arrival.place.take()
    };
    // Nothing is mapped from here on.
    unmap_all(worker);
    match place {
        None => {}
        Some(Arrives::Slot(slot)) => {
            let vectors = slots::take_vectors(slot);
            slots::give_back(slot);
            counters::uncount(Counter::GuestFiles);
            if vectors != 0 {
                worker.raise(vectors & !(1 << KERNEL_IDENTITY));
            }
        }
        Some(Arrives::File(place)) => {
            FILE_USES[place.hart].lock()[place.file] = FileUse::Orphan(Arc::downgrade(worker));
            HAS_ORPHANS[place.hart].store(true, Ordering::Release);
            counters::uncount(Counter::GuestFiles);
            if place.hart == Machine::hart() {
                drain_orphans();
            } else {
                Machine::send_ipi(place.hart);
            }
        }
    }
}

/// Unmaps a sender page of a process, on every hart, or ends the validity of an entry of its sender table. Returns the
/// harts on which a send through that entry may not have ended yet.
#[must_use]
fn unmap(process: &Process, page: usize) -> HartSet {
    if back_end::present() == BackEnd::Uintc {
        return process.sender_table.get().map_or(HartSet::EMPTY, |table| table.invalidate(page));
    }
    let start = (process.shared.address(SEND_OFFSET) + page * PAGE_SIZE) as u64;
    let removed = process.space().lock().unmap(start..start + PAGE_SIZE as u64);
    // It can fail only if the program has mapped something else around the page, which is not there then.
    if let Ok(removed) = removed {
        usermode::flush(removed);
    }
    HartSet::EMPTY
}

/// Unmaps every page of a worker's file, or ends the validity of every entry for its slot.
///
/// Pages are mapped and unmapped with the lock held, until no store or send is under way any more: none goes through a
/// page or an entry that is not in the list. A process that may be dropped with its rights, which come here again, is
/// dropped after that.
fn unmap_all(worker: &Worker) {
    /// Number of mappings that are ended with the lock held once.
    const AT_ONCE: usize = 8;
    loop {
        let mut processes: [Option<Arc<Process>>; AT_ONCE] = [const { None }; AT_ONCE];
        let mut harts = HartSet::EMPTY;
        let mut arrival = worker.line.arrival.lock();
        for place in &mut processes {
            let Some(mapping) = arrival.mappings.pop() else { break };
            *place = mapping.process.upgrade();
            place.iter().for_each(|process| harts = harts.union(unmap(process, mapping.page)));
        }
        finish(harts);
        if arrival.mappings.is_empty() {
            return;
        }
        drop(arrival);
    }
}

/// Returns whether a range has sender pages in it, which the program must not move or unmap: the kernel would not know
/// the pages through which stores still reach a file.
pub(crate) fn has_send_pages(process: &Process, address: usize, length: usize) -> bool {
    let start = process.shared.address(SEND_OFFSET);
    address < start + SEND_PAGES * PAGE_SIZE && address.saturating_add(length) > start
}

/// Passes on pending interrupts of this hart's files that have lost their workers. Cheap if there is none.
#[inline]
pub(crate) fn drain_orphans() {
    let hart = Machine::hart();
    // Acquire: pairs with the release in `give_up`.
    if HAS_ORPHANS[hart].load(Ordering::Relaxed) && HAS_ORPHANS[hart].swap(false, Ordering::Acquire) {
        drain_orphans_of(hart);
    }
}

#[cold]
fn drain_orphans_of(hart: usize) {
    for file in 1..FILES {
        let worker = match &FILE_USES[hart].lock()[file] {
            FileUse::Orphan(worker) => worker.clone(),
            _ => continue,
        };
        let bits = Machine::drain_guest_file(file);
        FILE_USES[hart].lock()[file] = FileUse::Free;
        if bits != 0
            && let Some(worker) = worker.upgrade()
        {
            worker.raise(bits & !(1 << KERNEL_IDENTITY));
        }
    }
}

/// Wakes the workers for which an interrupt has come in files of this hart while they do not run.
pub(crate) fn on_guest_files() {
    let hart = Machine::hart();
    let watched = Machine::watched_guest_files();
    let waiting = Machine::pending_guest_files() & watched;
    for file in (1..FILES).filter(|file| waiting & 1 << file != 0) {
        let worker = match &mut FILE_USES[hart].lock()[file] {
            FileUse::Used { worker, told } => {
                *told = true;
                worker.upgrade()
            }
            _ => None,
        };
        if let Some(worker) = worker {
            worker.wake_for_interrupt();
        }
    }
    // Pending interrupts stay pending.
    Machine::watch_guest_files(watched & !waiting);
}

/// Returns whether the worker has a place in the hardware where its interrupts arrive.
pub(crate) fn has_place(worker: &Worker) -> bool {
    worker.line.arrival.lock().place.is_some()
}

/// Completes an instruction of user interrupts that the machine has refused, if the program may expect that it works.
/// Returns `false` if something else has trapped.
///
/// * Sending through an entry that is not valid now, see [`send_refused`].
/// * Taking interrupts without a place in the hardware. The worker had one when its handler began, and then it came to
///   a hart without a free file; or it has none, and the kernel has interrupted it. It finds nothing, since its
///   interrupts are in its word.
pub(crate) fn complete_refused(worker: &Worker, context: &mut UserContext, trap: Trap) -> bool {
    let destination = match back_end::present() {
        BackEnd::Kernel => None,
        BackEnd::Imsic => trap.claim_without_file(),
        BackEnd::Uintc => match trap.refused_uipi() {
            Some(RefusedUipi::Send { index }) => {
                let index = context.register(index);
                return send_refused(&worker.process, context, index);
            }
            Some(RefusedUipi::Take { destination }) => Some(destination),
            // The handler of the kernel's library uses no others.
            Some(RefusedUipi::Add { .. } | RefusedUipi::SetActive) | None => None,
        },
    };
    let Some(destination) = destination else { return false };
    if has_place(worker) {
        return false;
    }
    context.set_register(destination, 0);
    context.pc += 4;
    true
}

/// Sends for a program on this hart whose instruction was refused, or makes the entry valid, so that the instruction
/// works when it is executed again. The index is the program's, so it is checked. Returns `false` if the process has
/// requested no entry with this index.
fn send_refused(process: &Arc<Process>, context: &mut UserContext, index: u64) -> bool {
    let Some(page) = index.checked_sub(1).map(|page| page as usize).filter(|&page| page < SEND_PAGES) else {
        return false;
    };
    let right = process.send_pages.lock()[page].clone();
    let Some(right) = right else { return false };
    // Closed by its last owner: `EBADF`.
    let reached = right.upgrade().map_or(Err(Errno::EBADF), |right| reach(process, page, &right));
    let result = match reached {
        Ok(Reached::ByEntry) => return true,
        Ok(Reached::ByKernel) => Ok(0),
        Err(error) => Err(error),
    };
    context.pc += 4;
    context.set_result(errno::encode(result) as u64);
    true
}

/// The way in which a receiver can be reached.
enum Reached {
    /// The entry is valid now.
    ByEntry,
    /// The kernel has sent.
    ByKernel,
}

/// Makes an entry of a process valid if its receiver notices what comes (AWAY-INVALID); sends otherwise.
fn reach(process: &Arc<Process>, page: usize, right: &Arc<Right>) -> Result<Reached, Errno> {
    let receiver = right.receiver()?;
    let worker = receiver.worker.upgrade().filter(|worker| !worker.is_to_stop()).ok_or(Errno::EPIPE)?;
    {
        let mut arrival = worker.line.arrival.lock();
        // Again under the lock, which revoking takes after it has marked the right.
        right.receiver()?;
        if let Some(Arrives::Slot(slot)) = arrival.place {
            if !arrival.is_on_hart && !arrival.is_told {
                // It is woken below, and so it is on a hart before it sleeps; without a handler it may sleep.
                arrival.is_told = worker.line.has_handler();
            } else if let Some(table) = process.sender_table.get()
                && let Some(entry) = uintc::entry(slot, receiver.identity as u8)
                // If the machine refuses a valid entry of a table that is loaded, the kernel sends.
                && (!slots::load_table(Machine::hart(), table) || !table.has(page, entry))
                && arrival.add(process, page, right)
            {
                table.set(page, entry);
                return Ok(Reached::ByEntry);
            }
        }
    }
    counters::count(Counter::InterruptSends);
    worker.raise(receiver.bit());
    Ok(Reached::ByKernel)
}

impl Arrival {
    /// Adds a page or an entry to the list; `false` if there is no memory for that. An entry of it in the list is
    /// stale: the program was replaced, the previous right is being dropped, or another hart has added it at this
    /// moment.
    fn add(&mut self, process: &Arc<Process>, page: usize, right: &Arc<Right>) -> bool {
        // A right that is gone ends its mapping itself, and stays in the list until then.
        self.mappings.retain(|mapping| mapping.process.strong_count() > 0);
        if self.mappings.try_reserve(1).is_err() {
            return false;
        }
        self.mappings.retain(|mapping| mapping.page != page || mapping.process.as_ptr() != Arc::as_ptr(process));
        self.mappings.push(SenderMapping { process: Arc::downgrade(process), page, right: Arc::downgrade(right) });
        true
    }
}

/// Performs the `interrupt_page` call.
pub(crate) fn page(process: &Arc<Process>, right: &Arc<Right>) -> Result<usize, Errno> {
    let receiver = right.receiver()?;
    if back_end::present() == BackEnd::Uintc && process.sender_table.get().is_none() {
        let table = SenderTable::new(&process.account)?;
        process.sender_table.call_once(|| table);
    }
    let page = {
        let mut pages = process.send_pages.lock();
        let is_same =
            |slot: &Option<Weak<Right>>| slot.as_ref().is_some_and(|weak| weak.as_ptr() == Arc::as_ptr(right));
        let is_free = |slot: &Option<Weak<Right>>| slot.as_ref().is_none_or(|weak| weak.strong_count() == 0);
        match pages.iter().position(is_same) {
            Some(page) => page,
            None => {
                let page = pages.iter().position(is_free).ok_or(Errno::ENOSPC)?;
                if pages[page].is_some() {
                    // The previous right may be being dropped at this moment, with its page still there.
                    finish(unmap(process, page));
                }
                pages[page] = Some(Arc::downgrade(right));
                page
            }
        }
    };
    if back_end::present() == BackEnd::Uintc {
        // No index is 0.
        return Ok(page + 1);
    }
    Ok((process.shared.address(SEND_OFFSET) + page * PAGE_SIZE) | receiver.identity)
}

/// Handles a fault of a store to one of the sender pages: maps the page if the receiver has a file, and else does the
/// same as the `interrupt_send` call. Returns `false` if the address is in none of these pages.
pub(crate) fn store_to_page(process: &Arc<Process>, context: &mut UserContext, address: u64) -> bool {
    let page = (address as usize).wrapping_sub(process.shared.address(SEND_OFFSET)) / PAGE_SIZE;
    if page >= SEND_PAGES {
        return false;
    }
    let right = process.send_pages.lock()[page].clone();
    let Some(right) = right else { return false };
    let result = match right.upgrade() {
        Some(right) if map_page(process, page, &right) => return true,
        Some(right) => Right::send(&right),
        // Closed by its last owner.
        None => Err(Errno::EBADF),
    };
    // The program goes on behind the store; instructions have two bytes unless their two lowest bits are set.
    let mut low = [0; 2];
    if process.copy_in(context.pc as usize, &mut low).is_err() {
        return false;
    }
    context.pc += if low[0] & 3 == 3 { 4 } else { 2 };
    context.set_result(errno::encode(result.map(|()| 0)) as u64);
    true
}

/// Maps the file's page for a sender; returns `false` if there is no file, or if the page is there already or cannot
/// be.
fn map_page(process: &Arc<Process>, page: usize, right: &Arc<Right>) -> bool {
    let Ok(receiver) = right.receiver() else { return false };
    if process.address_space.is_borrowing() {
        return false;
    }
    let Some(worker) = receiver.worker.upgrade().filter(|worker| !worker.is_to_stop()) else { return false };
    let mut arrival = worker.line.arrival.lock();
    // Again under the lock, which revoking takes after it has marked the right.
    if right.receiver().is_err() {
        return false;
    }
    let Some(Arrives::File(file)) = arrival.place else { return false };
    let Some(physical) = guest_page(file.hart, file.file) else { return false };
    // Before the mapping, which cannot be taken back: a page that is in the list and not mapped does no harm.
    if !arrival.add(process, page, right) {
        return false;
    }
    let start = (process.shared.address(SEND_OFFSET) + page * PAGE_SIZE) as u64;
    let place = Placement::FixedIfFree(start);
    let device = physical..physical + PAGE_SIZE as u64;
    let Ok((_, flush)) = process.space().lock().map_device(place, device, Protection::ReadWrite, "[interrupts]") else {
        return false;
    };
    usermode::flush(flush);
    true
}

/// Unmaps the pages of rights that have been dropped, or for which `is_over` returns `true`.
///
/// Looking at a right may drop it, which comes here again, so all rights are kept until the lock is free. `is_over`
/// must drop no receiver. The other pages stay in the list throughout: taking the file away unmaps them.
fn unmap_where(worker: &Worker, is_over: impl Fn(&Right) -> bool) {
    let (mut processes, mut rights) = (Vec::new(), Vec::new());
    let mut harts = HartSet::EMPTY;
    let mut arrival = worker.line.arrival.lock();
    let count = arrival.mappings.len();
    if processes.try_reserve(count).is_err() || rights.try_reserve(count).is_err() {
        drop(arrival);
        // Pages of valid rights come back at their next store.
        return unmap_all(worker);
    }
    let mut at = 0;
    while at < arrival.mappings.len() {
        let right = arrival.mappings[at].right.upgrade();
        if right.as_deref().is_none_or(&is_over) {
            let mapping = arrival.mappings.swap_remove(at);
            let process = mapping.process.upgrade();
            process.iter().for_each(|process| harts = harts.union(unmap(process, mapping.page)));
            processes.extend(process);
        } else {
            at += 1;
        }
        rights.extend(right);
    }
    finish(harts);
    drop(arrival);
}

/// Receivers of a process, by identity.
pub(crate) type Receivers = [Option<Weak<Receiver>>; LARGEST_IDENTITY + 1];

/// Rights for which a process has requested pages.
pub(crate) type SendPages = [Option<Weak<Right>>; SEND_PAGES];

/// The receivers of a new process.
pub(crate) const NO_RECEIVERS: Receivers = [const { None }; LARGEST_IDENTITY + 1];

/// A worker that can be interrupted under an identity.
pub(crate) struct Receiver {
    worker: Weak<Worker>,
    process: u32,
    identity: usize,
    /// Rights of an older epoch are revoked.
    // Changed with release by a revocation, and read with acquire: a sender that comes after the revocation sees it.
    epoch: AtomicU64,
    /// Rights that other processes may fetch.
    granted: Mutex<Vec<(Weak<Process>, Arc<Right>)>>,
}

/// A right to send to a receiver.
pub(crate) struct Right {
    receiver: Weak<Receiver>,
    epoch: u64,
    // As the epoch.
    revoked: AtomicBool,
}

impl Receiver {
    fn bit(&self) -> u64 {
        1 << self.identity
    }

    fn require_owner(&self, caller: &Process) -> Result<(), Errno> {
        // A number is enough: the receiver's process lives as long as its worker, and else there is nothing to do here.
        let owned = self.process == caller.id && self.worker.upgrade().is_some();
        if owned { Ok(()) } else { Err(Errno::EPERM) }
    }

    fn new_right(self: &Arc<Receiver>) -> Arc<Right> {
        let epoch = self.epoch.load(Ordering::Acquire);
        Arc::new(Right { receiver: Arc::downgrade(self), epoch, revoked: AtomicBool::new(false) })
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        counters::uncount(Counter::InterruptReceivers);
        if let Some(worker) = self.worker.upgrade() {
            worker.line.receivers.fetch_sub(1, Ordering::Relaxed);
            // This receiver cannot be reached any more, and so no right to it is valid.
            unmap_where(&worker, |right| right.receiver.strong_count() == 0);
        }
    }
}

impl Drop for Right {
    fn drop(&mut self) {
        // Its last descriptor is closed: so are its pages.
        if let Some(worker) = self.receiver.upgrade().and_then(|receiver| receiver.worker.upgrade()) {
            unmap_where(&worker, |_| false);
        }
    }
}

impl Right {
    /// Returns the receiver; `EPIPE` if there is none any more, `EPERM` if the right was revoked.
    fn receiver(&self) -> Result<Arc<Receiver>, Errno> {
        let receiver = self.receiver.upgrade().ok_or(Errno::EPIPE)?;
        // Acquire: pairs with the release of `revoke`.
        if self.revoked.load(Ordering::Acquire) || receiver.epoch.load(Ordering::Acquire) != self.epoch {
            return Err(Errno::EPERM);
        }
        Ok(receiver)
    }

    fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Sends an interrupt.
    pub(crate) fn send(&self) -> Result<(), Errno> {
        counters::count(Counter::InterruptSends);
        let receiver = self.receiver()?;
        let worker = receiver.worker.upgrade().filter(|worker| !worker.is_to_stop()).ok_or(Errno::EPIPE)?;
        worker.raise(receiver.bit());
        Ok(())
    }
}

impl FileOperations for Arc<Receiver> {
    fn status(&self) -> Status {
        status_of_anonymous()
    }
}

impl FileOperations for Arc<Right> {
    fn status(&self) -> Status {
        status_of_anonymous()
    }
}

/// Returns the object behind a file; `EINVAL` for any other kind.
pub(crate) fn of<K: FileOperations>(file: &OpenFile) -> Result<&K, Errno> {
    file.as_kind().ok_or(Errno::EINVAL)
}

/// Performs the `interrupt_receiver` call.
pub(crate) fn create(worker: &Arc<Worker>, identity: usize) -> Result<usize, Errno> {
    if !(1..=LARGEST_IDENTITY).contains(&identity) {
        return Err(Errno::EINVAL);
    }
    // A thread has no word in the process page.
    if worker.is_thread() {
        return Err(Errno::EPERM);
    }
    let process = &worker.process;
    let charge = file::charge(&process.account)?;
    let receiver = {
        let mut receivers = process.receivers.lock();
        let place = &mut receivers[identity];
        if place.as_ref().is_some_and(|receiver| receiver.strong_count() > 0) {
            return Err(Errno::EBUSY);
        }
        let receiver = Arc::new(Receiver {
            worker: Arc::downgrade(worker),
            process: process.id,
            identity,
            epoch: AtomicU64::new(0),
            granted: Mutex::new(Vec::new()),
        });
        counters::count(Counter::InterruptReceivers);
        worker.line.receivers.fetch_add(1, Ordering::Relaxed);
        *place = Some(Arc::downgrade(&receiver));
        receiver
    };
    settle_now(worker);
    let file = Arc::new(OpenFile::new(receiver, Access::Read, false, charge));
    process.descriptors.lock().add(file, true, 0)
}

/// Performs the `interrupt_grant` call.
pub(crate) fn grant(caller: &Process, receiver: &Arc<Receiver>, process: usize) -> Result<usize, Errno> {
    receiver.require_owner(caller)?;
    let right = receiver.new_right();
    if process == 0 || process == caller.id as usize {
        let file = Arc::new(OpenFile::new(right, Access::Write, false, file::charge(&caller.account)?));
        return caller.descriptors.lock().add(file, true, 0);
    }
    let id = u32::try_from(process).map_err(|_| Errno::ESRCH)?;
    let grantee = Arc::downgrade(&table::find(id).ok_or(Errno::ESRCH)?);
    let epoch = receiver.epoch.load(Ordering::Acquire);
    let mut granted = receiver.granted.lock();
    granted.retain(|(process, right)| process.strong_count() > 0 && right.epoch == epoch && !right.is_revoked());
    if granted.len() >= MAXIMUM_GRANTS {
        return Err(Errno::ENOSPC);
    }
    granted.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    granted.push((grantee, right));
    Ok(0)
}

/// Performs the `interrupt_open` call.
pub(crate) fn open(caller: &Arc<Process>, process: usize, identity: usize) -> Result<usize, Errno> {
    let id = u32::try_from(process).map_err(|_| Errno::ESRCH)?;
    let owner = table::find(id).ok_or(Errno::ESRCH)?;
    let receiver = owner.receivers.lock().get(identity).and_then(Option::as_ref).and_then(Weak::upgrade);
    let receiver = receiver.ok_or(Errno::EPERM)?;
    let right = {
        let granted = receiver.granted.lock();
        let is_for_caller = |process: &Weak<Process>| core::ptr::eq(process.as_ptr(), Arc::as_ptr(caller));
        let found = granted.iter().rev().find(|(process, right)| is_for_caller(process) && !right.is_revoked());
        found.map(|(_, right)| right.clone()).ok_or(Errno::EPERM)?
    };
    right.receiver()?;
    let file = Arc::new(OpenFile::new(right, Access::Write, false, file::charge(&caller.account)?));
    caller.descriptors.lock().add(file, true, 0)
}

/// Performs the `interrupt_revoke` call for a receiver: ends all rights that were granted so far.
pub(crate) fn revoke_all(caller: &Process, receiver: &Receiver) -> Result<(), Errno> {
    receiver.require_owner(caller)?;
    // Release: a sender that comes after this returns sees it.
    receiver.epoch.fetch_add(1, Ordering::AcqRel);
    let granted = core::mem::take(&mut *receiver.granted.lock());
    drop(granted);
    end_pages(receiver);
    Ok(())
}

/// Performs the `interrupt_revoke` call for a right.
pub(crate) fn revoke(caller: &Process, right: &Right) -> Result<(), Errno> {
    let receiver = right.receiver.upgrade().ok_or(Errno::EPIPE)?;
    receiver.require_owner(caller)?;
    right.revoked.store(true, Ordering::Release);
    end_pages(&receiver);
    Ok(())
}

/// Unmaps the pages of revoked rights.
fn end_pages(receiver: &Receiver) {
    if let Some(worker) = receiver.worker.upgrade() {
        let epoch = receiver.epoch.load(Ordering::Acquire);
        let is_its = |right: &Right| core::ptr::eq(right.receiver.as_ptr(), receiver);
        unmap_where(&worker, |right| is_its(right) && (right.is_revoked() || right.epoch != epoch));
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use abi_queue::ProcessPage;
    use abi_queue::pages::PROCESS_PAGE_OFFSET;
    use abi_unix::SystemCall;

    use super::*;
    use crate::testing::{DATA, HANDLER, Program, run, run_to_its_end};

    fn receiver(program: &mut Program, identity: usize) -> usize {
        program.call(SystemCall::InterruptReceiver, [identity]).unwrap()
    }

    /// Grants the caller a right to a receiver of its own.
    fn own_right(program: &mut Program, receiver: usize) -> usize {
        program.call(SystemCall::InterruptGrant, [receiver, 0]).unwrap()
    }

    fn send(program: &mut Program, right: usize) -> Result<usize, Errno> {
        program.call(SystemCall::InterruptSend, [right])
    }

    #[test]
    fn the_handler_is_given_the_senders_and_the_program_resumes_unchanged() {
        run(|program| {
            program.call(SystemCall::InterruptHandler, [HANDLER]).unwrap();
            let (three, five) = (receiver(program, 3), receiver(program, 5));
            let rights = (own_right(program, three), own_right(program, five));
            assert_eq!(send(program, rights.0), Ok(0));
            assert_eq!(program.handled(), [1 << 3]);
            // The result of a call that was interrupted at its end is still its own.
            send(program, rights.1).unwrap();
            let own = program.id as usize;
            assert_eq!(program.call(SystemCall::GetProcess, []), Ok(own));
            assert_eq!(program.handled(), [1 << 3, 1 << 5]);
        });
    }

    #[test]
    fn several_interrupts_before_the_handler_are_one() {
        run(|program| {
            let receivers = (receiver(program, 1), receiver(program, 62));
            let rights = (own_right(program, receivers.0), own_right(program, receivers.1));
            for right in [rights.0, rights.1, rights.0] {
                send(program, right).unwrap();
            }
            assert_eq!(program.handled(), [], "there is no handler");
            // Interrupts from before the handler was set are there for it.
            program.call(SystemCall::InterruptHandler, [HANDLER]).unwrap();
            assert_eq!(program.handled(), [1 << 1 | 1 << 62]);
        });
    }

    /// Bits that the handler has left, or set itself, are delivered at the next tick, and only then.
    #[test]
    fn a_handler_can_ask_for_the_next_tick() {
        run(|program| {
            let word = program.process().shared.address(PROCESS_PAGE_OFFSET) + offset_of!(ProcessPage, interrupts);
            program.write(word, &(1u64 << 63).to_le_bytes());
            let tick = |program: &mut Program| {
                crate::testing::simulation().advance(1_000_000);
                program.trap(Trap::Interrupt);
            };
            tick(program);
            assert_eq!(program.handled(), [], "there is no handler");
            program.write(word, &0u64.to_le_bytes());
            program.call(SystemCall::InterruptHandler, [HANDLER]).unwrap();
            let before = program.handled().len();
            tick(program);
            program.write(word, &(1u64 << 63).to_le_bytes());
            let own = program.id as usize;
            assert_eq!(program.call(SystemCall::GetProcess, []), Ok(own));
            assert_eq!(program.handled().len(), before);
            tick(program);
            assert_eq!(program.handled()[before..], [1 << 63]);
            tick(program);
            assert_eq!(program.handled().len(), before + 1);
        });
    }

    /// A machine with UINTC, all of whose slots are taken: the kernel delivers.
    struct WithoutSlots;

    impl WithoutSlots {
        fn new() -> WithoutSlots {
            back_end::set(BackEnd::Uintc);
            WithoutSlots
        }
    }

    impl Drop for WithoutSlots {
        fn drop(&mut self) {
            back_end::set(BackEnd::Kernel);
        }
    }

    /// Returns whether the interrupts of the program on hart 0 are enabled, and whether one is pending.
    fn enabled_and_pending() -> (bool, bool) {
        let registers = crate::testing::simulation().user_level(0).registers.unwrap();
        (registers.enabled != 0, registers.notified != 0)
    }

    #[test]
    fn nothing_interrupts_a_worker_without_a_handler_and_nothing_is_lost() {
        run(|program| {
            let machine = WithoutSlots::new();
            // From the next visit on the kernel knows it.
            program.sleep_ns(1);
            let places = counters::read(Counter::GuestFiles);
            let receiver = receiver(program, 7);
            assert_eq!(counters::read(Counter::GuestFiles), places);
            let right = own_right(program, receiver);
            send(program, right).unwrap();
            assert_eq!(crate::testing::simulation().user_level(0).registers, None, "it has no handler");
            // The next handler gets what has come, as soon as the program enables its interrupts.
            program.call(SystemCall::InterruptHandler, [HANDLER]).unwrap();
            assert_eq!(enabled_and_pending(), (false, true));
            crate::testing::simulation().enable_user_interrupts(0);
            assert_eq!(enabled_and_pending(), (true, true));
            // So does the one after it with an interrupt that the first has not taken.
            program.call(SystemCall::InterruptHandler, [0]).unwrap();
            assert_eq!(enabled_and_pending(), (false, true));
            program.call(SystemCall::InterruptHandler, [HANDLER]).unwrap();
            assert_eq!(enabled_and_pending(), (false, true));
            // A handler that removes itself may leave its hart before its end, which needs the registers.
            program.call(SystemCall::InterruptHandler, [0]).unwrap();
            program.sleep_ns(1);
            assert_eq!(enabled_and_pending(), (false, true));
            drop(machine);
        });
    }

    #[test]
    fn an_interrupt_wakes_a_worker_that_sleeps() {
        run(|program| {
            program.call(SystemCall::InterruptHandler, [HANDLER]).unwrap();
            let receiver = receiver(program, 7);
            let right = own_right(program, receiver);
            program
                .add_worker(move |program| {
                    program.sleep_ns(1_000_000);
                    send(program, right).unwrap();
                })
                .unwrap();
            let posted = program.process().posted() as usize;
            assert_eq!(program.call(SystemCall::WorkerWait, [posted, usize::MAX]), Ok(0));
            assert_eq!(program.handled(), [1 << 7]);
        });
    }

    /// Rights are granted to a process, fetched by it, and end with a revocation, with their receiver, or with their
    /// epoch; never is there one that was not granted.
    #[test]
    fn another_process_sends_as_long_as_it_may() {
        run(|program| {
            program.call(SystemCall::InterruptHandler, [HANDLER]).unwrap();
            let receiver = receiver(program, 4);
            let own = program.id as usize;
            let word = program.place(8);
            let child = program.spawn(move |program| {
                assert_eq!(program.call(SystemCall::InterruptOpen, [own, 4]), Err(Errno::EPERM), "not granted yet");
                program.sleep_ns(2_000_000);
                let right = program.call(SystemCall::InterruptOpen, [own, 4]).unwrap();
                assert_eq!(program.call(SystemCall::InterruptOpen, [own, 5]), Err(Errno::EPERM));
                assert_eq!(program.call(SystemCall::InterruptRevoke, [right]), Err(Errno::EPERM));
                assert_eq!(send(program, right), Ok(0));
                program.sleep_ns(4_000_000);
                assert_eq!(send(program, right), Err(Errno::EPERM), "all were revoked");
                assert_eq!(program.call(SystemCall::InterruptOpen, [own, 4]), Err(Errno::EPERM));
                program.sleep_ns(4_000_000);
                let again = program.call(SystemCall::InterruptOpen, [own, 4]).unwrap();
                assert_eq!(send(program, again), Ok(0));
                program.sleep_ns(4_000_000);
                assert_eq!(send(program, again), Err(Errno::EPIPE), "the receiver is closed");
            });
            let child = child.unwrap();
            program.sleep_ns(1_000_000);
            assert_eq!(program.call(SystemCall::InterruptGrant, [receiver, child]), Ok(0));
            assert_eq!(program.call(SystemCall::InterruptGrant, [receiver, 99_999]), Err(Errno::ESRCH));
            program.sleep_ns(3_000_000);
            assert_eq!(program.handled(), [1 << 4]);
            assert_eq!(program.call(SystemCall::InterruptRevoke, [receiver]), Ok(0));
            program.sleep_ns(4_000_000);
            assert_eq!(program.call(SystemCall::InterruptGrant, [receiver, child]), Ok(0));
            program.sleep_ns(4_000_000);
            assert_eq!(program.handled(), [1 << 4, 1 << 4]);
            program.close(receiver).unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            let _ = word;
        });
    }

    #[test]
    fn one_right_is_revoked_without_the_others() {
        run(|program| {
            program.call(SystemCall::InterruptHandler, [HANDLER]).unwrap();
            let receiver = receiver(program, 9);
            let (first, second) = (own_right(program, receiver), own_right(program, receiver));
            let copy = program.call(SystemCall::Duplicate, [first]).unwrap();
            assert_eq!(program.call(SystemCall::InterruptRevoke, [first]), Ok(0));
            assert_eq!((send(program, first), send(program, copy)), (Err(Errno::EPERM), Err(Errno::EPERM)));
            assert_eq!(send(program, second), Ok(0));
            assert_eq!(program.handled(), [1 << 9]);
            // Only a right sends, and only a receiver grants.
            assert_eq!(send(program, receiver), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::InterruptGrant, [second, 0]), Err(Errno::EINVAL));
            assert_eq!(send(program, 77), Err(Errno::EBADF));
        });
    }

    #[test]
    fn identities_are_unique_in_a_process_while_their_receiver_is_open() {
        run(|program| {
            for identity in [0, LARGEST_IDENTITY + 1, usize::MAX] {
                let refused = program.call(SystemCall::InterruptReceiver, [identity]);
                assert_eq!(refused, Err(Errno::EINVAL));
            }
            let first = receiver(program, 6);
            assert_eq!(program.call(SystemCall::InterruptReceiver, [6]), Err(Errno::EBUSY));
            program.close(first).unwrap();
            receiver(program, 6);
        });
    }

    /// A receiver keeps so many rights for others, and makes room when they have gone.
    #[test]
    fn the_rights_that_wait_to_be_fetched_are_limited() {
        run(|program| {
            let receiver = receiver(program, 2);
            let child = program.spawn(|program| program.sleep_ns(1_000_000_000)).unwrap();
            for _ in 0..MAXIMUM_GRANTS {
                assert_eq!(program.call(SystemCall::InterruptGrant, [receiver, child]), Ok(0));
            }
            assert_eq!(program.call(SystemCall::InterruptGrant, [receiver, child]), Err(Errno::ENOSPC));
            program.call(SystemCall::InterruptRevoke, [receiver]).unwrap();
            assert_eq!(program.call(SystemCall::InterruptGrant, [receiver, child]), Ok(0));
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!(program.call(SystemCall::InterruptGrant, [receiver, child]), Err(Errno::ESRCH));
        });
    }

    #[test]
    fn a_return_or_a_departure_needs_a_handler() {
        run(|program| {
            assert_eq!(program.call(SystemCall::InterruptReturn, []), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::InterruptLeave, []), Err(Errno::EINVAL));
            for bad in [HANDLER + 1, usize::MAX - 1] {
                assert_eq!(program.call(SystemCall::InterruptHandler, [bad]), Err(Errno::EINVAL));
            }
            assert_eq!(program.call(SystemCall::InterruptHandler, [0]), Ok(0));
        });
    }

    /// The frame keeps the registers that the handler must restore, and a handler that has left may be entered again.
    #[test]
    fn frames_bring_the_program_back() {
        run(|program| {
            let process = program.process();
            let line = InterruptLine::default();
            line.set_handler(HANDLER);
            let stack = DATA as u64 + 0x2008;
            let mut context = UserContext::new(0x1_0040, stack);
            context.set_register(17, 99);
            line.set_pending();
            line.deliver(&process, &mut context);
            assert_eq!((context.pc, context.stack() % 16, line.is_pending()), (HANDLER as u64, 0, false));
            assert!(context.stack() + 32 <= stack);
            // Not entered a second time while it runs.
            let inside = context.clone();
            line.set_pending();
            line.deliver(&process, &mut context);
            assert_eq!((context.pc, context.stack(), line.is_pending()), (inside.pc, inside.stack(), true));
            assert_eq!(line.leave_handler(), Ok(0));
            assert_eq!(line.leave_handler(), Err(Errno::EINVAL));
            line.deliver(&process, &mut context);
            assert!(context.stack() < inside.stack(), "on top of the other");
            // Both return, the inner one first.
            line.return_to_interrupted(&process, &mut context).unwrap();
            assert_eq!((context.pc, context.stack()), (inside.pc, inside.stack()));
            line.return_to_interrupted(&process, &mut context).unwrap();
            assert_eq!((context.pc, context.stack(), context.register(17)), (0x1_0040, stack, 99));
            assert_eq!(line.return_to_interrupted(&process, &mut context), Err(Errno::EINVAL));
            // Inside of the scheduler's image it waits.
            context.pc = process.shared.image_address() as u64;
            line.set_pending();
            line.deliver(&process, &mut context);
            assert!(line.is_pending());
        });
    }

    #[test]
    fn a_handler_without_a_stack_ends_the_process() {
        let ending = run_to_its_end(|program| {
            let process = program.process();
            let line = InterruptLine::default();
            line.set_handler(HANDLER);
            line.set_pending();
            line.deliver(&process, &mut UserContext::new(0x1_0040, 0x1000));
            program.call(SystemCall::GetProcess, []).unwrap();
        });
        assert_eq!(ending, Ending::Killed(abi_unix::types::signal::SEGV as u8));
    }
}
