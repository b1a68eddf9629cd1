//! The hardware of the back end `uintc`: the slots of the controller, sender tables, and a hart's armed program.
//!
//! Programs read sender tables through an instruction and never write them. An entry names a slot and a vector; the
//! kernel writes it as a whole. It must know when no send through an entry that it has cleared is under way any more:
//! on another hart, an instruction may have read the entry and not have reached the controller yet.
//!
//! # SENT-OR-SEEN
//!
//! A hart publishes the table that it loads in `LOADED`, then a fence, then it enters user mode. The kernel clears an
//! entry, then a fence, then it looks at `LOADED` of every hart. With a fence on both sides, the kernel sees the hart's
//! table, or the hart's program sees the cleared entry. In the first case [`finish`] interrupts the hart, and an
//! interrupt comes between two instructions: when all harts have answered, every earlier send has reached its slot.
//! The model in the tests tries all orders of the steps.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use abi_unix::Errno;
use drivers::uintc::{SLOTS, Slot, Uintc};
use hal_api::{HartSet, InterruptRegisters, MAXIMUM_HARTS, Machine as _, UserLevel as _};
use memory::Frame;
use platform::{Machine, Mapped};
use spin::{Mutex, Once};

use crate::process::accounts::{Account, Charge, Resource};

static CONTROLLER: Once<Uintc<Mapped>> = Once::new();

/// Slots that workers have, one bit each.
static TAKEN: Mutex<[u64; SLOTS as usize / 64]> = Mutex::new([0; SLOTS as usize / 64]);

/// The table that each hart has loaded, by the number of its frame; 0 for none (SENT-OR-SEEN). Written by the hart.
static LOADED: [AtomicU64; MAXIMUM_HARTS] = [const { AtomicU64::new(0) }; MAXIMUM_HARTS];
/// Set while a program is armed on a hart. Used by the hart alone.
static ARMED: [AtomicBool; MAXIMUM_HARTS] = [const { AtomicBool::new(false) }; MAXIMUM_HARTS];

/// Takes over the controller; returns `false` if the machine has none.
pub(super) fn start() -> bool {
    let registers = platform::get().user_interrupts.and_then(Mapped::new);
    registers.is_some_and(|registers| {
        CONTROLLER.call_once(|| Uintc::new(registers));
        true
    })
}

/// Takes an empty, inactive slot; `None` if all are taken.
pub(super) fn take() -> Option<Slot> {
    let number = {
        let mut taken = TAKEN.lock();
        let (place, word) = taken.iter_mut().enumerate().find(|(_, word)| **word != u64::MAX)?;
        let bit = word.trailing_ones();
        *word |= 1 << bit;
        place as u16 * 64 + bit as u16
    };
    let slot = Slot::new(number)?;
    CONTROLLER.get()?.reset(slot);
    Some(slot)
}

/// Gives back a slot that no valid entry reaches.
pub(super) fn give_back(slot: Slot) {
    let number = usize::from(slot.number());
    TAKEN.lock()[number / 64] &= !(1 << (number % 64));
}

/// Lets a slot interrupt the calling hart.
pub(super) fn activate(slot: Slot, hart: usize) {
    if let (Some(controller), Some(&number)) = (CONTROLLER.get(), platform::get().hart_ids.get(hart)) {
        controller.activate(slot, number as u16);
    }
}

/// Lets a slot interrupt no hart.
pub(super) fn deactivate(slot: Slot) {
    CONTROLLER.get().into_iter().for_each(|controller| controller.deactivate(slot));
}

/// Makes a vector pending in a slot.
pub(super) fn send(slot: Slot, vector: u32) {
    CONTROLLER.get().into_iter().for_each(|controller| controller.send(slot, vector as u8));
}

/// Takes the pending vectors out of a slot.
pub(super) fn take_vectors(slot: Slot) -> u64 {
    CONTROLLER.get().map_or(0, |controller| controller.take(slot))
}

/// Loads a program's registers, its slot and its table on the calling hart.
pub(super) fn arm(hart: usize, registers: &InterruptRegisters, slot: Option<Slot>, table: Option<&SenderTable>) {
    Machine::arm(registers);
    ARMED[hart].store(true, Ordering::Relaxed);
    if let Some(slot) = slot {
        Machine::receive_in(Some(slot.number()));
    }
    if let Some(table) = table {
        load_table(hart, table);
    }
}

/// Arms the program that runs on the calling hart if it is not armed yet. It has never set its registers then.
pub(super) fn arm_if_needed(hart: usize) {
    if !ARMED[hart].load(Ordering::Relaxed) {
        arm(hart, &InterruptRegisters::NEW, None, None);
    }
}

/// Disables the interrupts of the program that runs on the calling hart, if it is armed: they stay pending.
pub(super) fn disable(hart: usize) {
    if ARMED[hart].load(Ordering::Relaxed) {
        Machine::disable_user_interrupts();
    }
}

/// Lets the program that runs on the calling hart receive in a slot.
pub(super) fn receive_in(hart: usize, slot: Slot) {
    arm_if_needed(hart);
    Machine::receive_in(Some(slot.number()));
}

/// Lets the program that runs on the calling hart send through its process's table. Returns whether it could before.
pub(super) fn load_table(hart: usize, table: &SenderTable) -> bool {
    let number = table.number();
    if LOADED[hart].load(Ordering::Relaxed) == number {
        return true;
    }
    arm_if_needed(hart);
    LOADED[hart].store(number, Ordering::Relaxed);
    // SENT-OR-SEEN.
    fence(Ordering::SeqCst);
    Machine::send_through(Some(hal_api::SenderTable { first_frame: number, frames: 1 }));
    false
}

/// Takes the program on the calling hart away, with its registers, if one is armed. Its slot is inactive.
pub(super) fn disarm(hart: usize, registers: &mut InterruptRegisters) {
    if ARMED[hart].load(Ordering::Relaxed) {
        Machine::disarm(registers);
        ARMED[hart].store(false, Ordering::Relaxed);
        // Release: no send of the program is under way any more.
        LOADED[hart].store(0, Ordering::Release);
    }
}

/// Waits until every send has ended that has begun on these harts.
pub(super) fn finish(harts: HartSet) {
    if !harts.is_empty() {
        // This interrupts each of them, and no interrupt comes in the middle of an instruction.
        Machine::synchronise_instructions(harts);
    }
}

/// The sender table of a process: one page of entries, of which the program names those from 1 on.
pub(crate) struct SenderTable {
    frame: Frame,
    _charge: Charge,
}

impl SenderTable {
    /// Makes a table without valid entries. `ENOMEM`.
    pub(super) fn new(account: &alloc::sync::Arc<Account>) -> Result<SenderTable, Errno> {
        let charge = account.charge(Resource::Memory, abi_queue::pages::PAGE_SIZE)?;
        let frame = Frame::allocate_zeroed().map_err(|_| Errno::ENOMEM)?;
        Ok(SenderTable { frame, _charge: charge })
    }

    /// Returns the number of its frame.
    fn number(&self) -> u64 {
        self.frame.physical_address() / memory::PAGE_SIZE
    }

    fn entry(&self, page: usize) -> Option<&AtomicU64> {
        self.frame.bytes().atomic_u64((page + 1) * size_of::<u64>())
    }

    /// Returns whether the entry of a page is this valid one.
    pub(super) fn has(&self, page: usize, entry: u64) -> bool {
        self.entry(page).is_some_and(|place| place.load(Ordering::Relaxed) == entry)
    }

    /// Makes the entry of a page valid.
    pub(super) fn set(&self, page: usize, entry: u64) {
        if let Some(place) = self.entry(page) {
            place.store(entry, Ordering::Release);
        }
    }

    /// Makes the entry of a page not valid. Returns the other harts that may be sending through it: to be passed to
    /// [`finish`].
    pub(super) fn invalidate(&self, page: usize) -> HartSet {
        let Some(place) = self.entry(page) else { return HartSet::EMPTY };
        if place.swap(0, Ordering::Relaxed) == 0 {
            return HartSet::EMPTY;
        }
        // SENT-OR-SEEN.
        fence(Ordering::SeqCst);
        let number = self.number();
        let own = Machine::hart();
        // Acquire: pairs with the release in `disarm`.
        let sends = |hart: &usize| *hart != own && LOADED[*hart].load(Ordering::Acquire) == number;
        (0..MAXIMUM_HARTS).filter(sends).fold(HartSet::EMPTY, HartSet::with)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Steps that the kernel could leave out when a receiver leaves its hart.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Fault {
        None,
        /// It does not wait for sends that have begun.
        NoFinish,
        /// It takes the vectors before it clears the entry.
        TakesFirst,
        /// The sender's hart publishes its table after its program has begun to send.
        LoadsLate,
        /// A receiver that is away is told without being woken.
        ToldAndNotWoken,
    }

    /// A receiver that leaves its hart to sleep, and a program on another hart that sends to it.
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    struct State {
        /// Next steps of the two.
        receiver: u8,
        sender: u8,
        /// Sends that the program has still to make.
        left: u8,
        is_on_hart: bool,
        is_told: bool,
        entry: bool,
        loaded: bool,
        /// The kernel has seen the sender's table loaded.
        must_finish: bool,
        vectors: bool,
        woken: bool,
        asleep: bool,
    }

    const DONE: u8 = u8::MAX;

    impl State {
        /// Takes a step of the receiver's hart; `None` if it cannot.
        fn receiver(mut self, fault: Fault) -> Option<State> {
            let take = |state: &mut State| state.woken |= core::mem::take(&mut state.vectors);
            self.receiver = match self.receiver {
                0 => {
                    (self.is_on_hart, self.is_told) = (false, false);
                    if fault == Fault::TakesFirst {
                        take(&mut self);
                    }
                    1
                }
                1 => {
                    self.entry = false;
                    2
                }
                2 => {
                    self.must_finish = self.loaded && fault != Fault::NoFinish;
                    3
                }
                // The sender's hart answers between two instructions.
                3 if self.must_finish && self.sender == 2 => return None,
                3 => {
                    if fault != Fault::TakesFirst {
                        take(&mut self);
                    }
                    4
                }
                4 => {
                    self.asleep = !self.woken;
                    if self.asleep { 5 } else { DONE }
                }
                // It sleeps until it is woken, and finds all that has come.
                5 if self.woken => {
                    self.asleep = false;
                    DONE
                }
                _ => return None,
            };
            Some(self)
        }

        /// Takes a step of the sender's hart.
        fn sender(mut self, fault: Fault) -> Option<State> {
            self.sender = match self.sender {
                0 => {
                    self.loaded = fault != Fault::LoadsLate;
                    1
                }
                // The instruction, in two steps.
                1 if self.left == 0 => 4,
                1 if self.entry => 2,
                1 => 3,
                2 => {
                    (self.vectors, self.loaded) = (true, true);
                    self.left -= 1;
                    1
                }
                // It was refused.
                3 => {
                    if self.is_on_hart || self.is_told {
                        self.entry = true;
                    } else {
                        self.is_told = true;
                        self.woken |= fault != Fault::ToldAndNotWoken;
                        self.left -= 1;
                    }
                    1
                }
                4 => {
                    self.loaded = false;
                    DONE
                }
                _ => return None,
            };
            Some(self)
        }
    }

    /// Returns whether every order of the steps lets the receiver notice what was sent.
    fn holds(fault: Fault, sends: u8, is_valid_at_first: bool) -> bool {
        let mut seen = HashSet::new();
        let mut open = vec![State { left: sends, is_on_hart: true, entry: is_valid_at_first, ..State::default() }];
        let mut ends = 0;
        while let Some(state) = open.pop() {
            if !seen.insert(state) {
                continue;
            }
            let next = [state.receiver(fault), state.sender(fault)];
            if next == [None, None] {
                ends += 1;
                if state.asleep && (state.vectors || state.is_told) {
                    return false;
                }
            }
            open.extend(next.into_iter().flatten());
        }
        assert!(ends > 1, "there is more than one end");
        true
    }

    #[test]
    fn no_order_of_the_steps_loses_an_interrupt_and_each_step_is_needed() {
        // An earlier send may wake the receiver for a later one, so one alone is tried, too.
        let always = |fault| (1..=3).all(|sends| [false, true].iter().all(|&is_valid| holds(fault, sends, is_valid)));
        assert!(always(Fault::None));
        for fault in [Fault::NoFinish, Fault::TakesFirst, Fault::LoadsLate, Fault::ToldAndNotWoken] {
            assert!(!always(fault), "{fault:?}");
        }
    }

    #[test]
    fn slots_are_taken_once_and_all_of_them_exist() {
        let _guard = crate::testing::alone();
        let mut taken = TAKEN.lock();
        let before = *taken;
        let word = taken.last_mut().unwrap();
        *word = u64::MAX >> 1;
        let last = 64 * 7 + word.trailing_ones() as u16;
        assert_eq!(Slot::new(last).map(Slot::number), Some(SLOTS - 1));
        drop(taken);
        give_back(Slot::new(SLOTS - 64).unwrap());
        assert_eq!(TAKEN.lock().last(), Some(&(u64::MAX >> 1 & !1)));
        *TAKEN.lock() = before;
    }

    #[test]
    fn an_entry_that_is_cleared_concerns_the_other_harts_with_its_table() {
        crate::testing::run(|program| {
            let table = SenderTable::new(&program.process().account).unwrap();
            let entry = drivers::uintc::entry(Slot::new(3).unwrap(), 9).unwrap();
            assert_eq!(table.invalidate(0), HartSet::EMPTY, "it is not valid");
            for page in [0, 63] {
                assert!(!table.has(page, entry));
                table.set(page, entry);
                assert!(table.has(page, entry));
                LOADED[5].store(table.number(), Ordering::Relaxed);
                LOADED[6].store(table.number() + 1, Ordering::Relaxed);
                assert_eq!(table.invalidate(page), HartSet::only(5));
                assert!(!table.has(page, entry));
                LOADED[5].store(0, Ordering::Relaxed);
                LOADED[6].store(0, Ordering::Relaxed);
            }
        });
    }
}
