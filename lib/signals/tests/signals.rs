//! Signals, without a process: sets, actions, pending ones, and frames.

use hal_api::UserContext;
use proptest::prelude::*;
use signals::frame::{self, Stack};
use signals::{
    Action, Actions, BrokenPipe, DefaultAction, Details, Disposition, Information, Pending, Set, Signal, action_flag,
    code,
};

fn signal(number: u32) -> Signal {
    Signal::new(number).unwrap()
}

fn sent(number: u32, value: u64) -> Information {
    let details = Details::Sender { process: 7, user: 0, value };
    Information { signal: signal(number), code: code::QUEUE, details }
}

#[test]
fn numbers_are_1_to_64() {
    assert_eq!(Signal::new(0), None);
    assert_eq!(Signal::new(65), None);
    assert_eq!(Signal::new(1), Some(Signal::HUP));
    assert_eq!(signal(64).number(), 64);
    assert!(!signal(31).is_real_time() && signal(32).is_real_time());
    assert_eq!(format!("{:?}", Set::of(&[Signal::TERM, signal(40)])), "{SIGTERM, signal 40}");
}

#[test]
fn masks_leave_the_unblockable_signals_out() {
    let mask = Set::mask(u64::MAX);
    assert!(!mask.has(Signal::KILL) && !mask.has(Signal::STOP) && mask.has(Signal::TERM));
    assert_eq!(mask.bits().count_ones(), 62);
}

#[test]
fn faults_go_first_and_then_low_numbers() {
    let mut set = Set::of(&[Signal::HUP, Signal::SEGV, signal(64), Signal::ILL]);
    let mut order = Vec::new();
    while let Some(first) = set.first() {
        order.push(first.number());
        set.remove(first);
    }
    assert_eq!(order, [4, 11, 1, 64]);
    assert!(set.is_empty());
}

/// Tables of signal(7).
#[test]
fn defaults_are_linuxs() {
    for number in 1..=64 {
        let expected = match number {
            17 | 23 | 28 => DefaultAction::Ignore,
            18 => DefaultAction::Continue,
            19..=22 => DefaultAction::Stop,
            _ => DefaultAction::End,
        };
        assert_eq!(DefaultAction::of(signal(number)), expected, "{number}");
    }
}

#[test]
fn actions_are_kept_and_forgotten() {
    let mut actions = Actions::new(BrokenPipe::FailsTheCall);
    let handler = Action { handler: 0x1000, flags: action_flag::RESTART, mask: Set::of(&[Signal::HUP]) };
    assert_eq!(actions.get(Signal::TERM), Action::INITIAL);
    assert_eq!(actions.disposition(Signal::TERM), Disposition::Default(DefaultAction::End));
    assert_eq!(actions.disposition(Signal::CHLD), Disposition::Ignore);
    actions.set(Signal::TERM, handler).unwrap();
    actions.set(Signal::INT, Action { handler: Action::IGNORE, ..handler }).unwrap();
    assert_eq!(actions.disposition(Signal::TERM), Disposition::Handle(handler));
    assert_eq!(actions.disposition(Signal::INT), Disposition::Ignore);
    let copy = actions.copy().unwrap();
    actions.forget_handlers();
    assert_eq!(actions.get(Signal::TERM), Action::INITIAL);
    assert_eq!(actions.get(Signal::INT), Action { handler: Action::IGNORE, ..Action::INITIAL });
    assert_eq!(copy.get(Signal::TERM), handler);
    assert_eq!(Action::from_bytes(handler.to_bytes()), handler);
}

#[test]
fn handlers_are_reset_when_they_ask_for_it() {
    let mut actions = Actions::new(BrokenPipe::FailsTheCall);
    let once = Action { handler: 0x1000, flags: action_flag::RESETHAND, mask: Set::EMPTY };
    actions.set(Signal::USR1, once).unwrap();
    actions.set(Signal::USR2, Action { flags: 0, ..once }).unwrap();
    for _ in 0..2 {
        assert_eq!(actions.disposition(Signal::USR1), Disposition::Handle(once));
    }
    assert_eq!(actions.take_disposition(Signal::USR1), Disposition::Handle(once));
    assert_eq!(actions.take_disposition(Signal::USR1), Disposition::Default(DefaultAction::End));
    for _ in 0..2 {
        assert!(matches!(actions.take_disposition(Signal::USR2), Disposition::Handle(_)));
    }
}

#[test]
fn standard_signals_are_pending_once_and_real_time_signals_queue() {
    let mut pending = Pending::new();
    for value in 1..4 {
        pending.add(sent(15, value), true).unwrap();
        pending.add(sent(40, value), true).unwrap();
    }
    assert_eq!(pending.set(), Set::of(&[Signal::TERM, signal(40)]));
    assert_eq!(pending.take(Signal::TERM), Some(sent(15, 1)));
    assert_eq!(pending.take(Signal::TERM), None);
    for value in 1..4 {
        assert_eq!(pending.take(signal(40)), Some(sent(40, value)));
    }
    assert_eq!(pending.take(signal(40)), None);
    assert!(pending.set().is_empty());
    pending.add(sent(20, 1), true).unwrap();
    pending.add(sent(40, 1), true).unwrap();
    pending.remove_all(Set::STOPPING);
    assert_eq!(pending.set(), Set::of(&[signal(40)]));
    assert_eq!(pending.take(Signal::TSTP), None);
}

/// Beyond the limit a signal arrives without its information; a value that would be lost is refused.
#[test]
fn full_queues_lose_information_and_no_signal() {
    let mut pending = Pending::new();
    for value in 0..Pending::LONGEST as u64 {
        pending.add(sent(50, value), true).unwrap();
    }
    assert!(pending.add(sent(50, 1), false).is_err());
    assert!(pending.add(sent(51, 1), false).is_err());
    assert!(!pending.set().has(signal(51)));
    assert!(pending.add(sent(15, 1), false).is_err());
    assert!(pending.set().has(Signal::TERM));
    assert_eq!(pending.take(Signal::TERM).unwrap().code, code::USER);
    let by_kill = Information { code: code::USER, ..sent(52, 0) };
    assert!(pending.add(by_kill, false).is_err());
    assert_eq!(pending.take(signal(52)).unwrap().details, Details::Sender { process: 0, user: 0, value: 0 });
}

/// Offsets of `siginfo_t` (asm-generic/siginfo.h).
#[test]
fn information_lies_where_programs_look() {
    let word = |bytes: &[u8; 128], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let bytes = sent(40, 0x1_0000_0002).to_bytes();
    assert_eq!([0, 4, 8, 16, 20, 24, 28].map(|at| word(&bytes, at)), [40, 0, u32::MAX, 7, 0, 2, 1]);
    assert_eq!(Information::from_program(signal(40), &bytes), sent(40, 0x1_0000_0002));
    let child = Details::Child { process: 9, user: 1, status: 3 };
    let bytes = Information { signal: Signal::CHLD, code: code::CHILD_EXITED, details: child }.to_bytes();
    assert_eq!([0, 8, 16, 20, 24].map(|at| word(&bytes, at)), [17, 1, 9, 1, 3]);
    let fault = Information { signal: Signal::SEGV, code: code::NOT_MAPPED, details: Details::Fault(0x5678) };
    assert_eq!(word(&fault.to_bytes(), 16), 0x5678);
    let timer = Details::Timer { id: 3, overrun: 4, value: 5 };
    let bytes = Information { signal: Signal::ALRM, code: code::TIMER, details: timer }.to_bytes();
    assert_eq!([16, 20, 24].map(|at| word(&bytes, at)), [3, 4, 5]);
    assert_eq!(Information::of_kernel(Signal::PIPE).to_bytes()[16..], [0; 112]);
}

#[test]
fn stacks_hold_pointers_above_their_start() {
    let stack = Stack { start: 0x1000, flags: 0, size: 0x800 };
    assert_eq!(Stack::from_bytes(&stack.to_bytes()), stack);
    assert!(stack.holds(0x1800) && stack.holds(0x1001));
    assert!(!stack.holds(0x1000) && !stack.holds(0x1801));
    assert!(!Stack::NONE.holds(0) && !Stack { flags: Stack::DISABLED, ..stack }.holds(0x1400));
}

/// Offsets of riscv64's `ucontext_t`.
#[test]
fn frames_lie_where_programs_look() {
    let mut context = UserContext::new(0x4000, 0x8000);
    context.set_register(10, 77);
    context.floating_point_mut().f[1] = 1.5f64.to_bits();
    context.floating_point_mut().fcsr = 0x61;
    let mut bytes = [0xff; frame::SIZE];
    let stack = Stack { start: 0x9000, flags: 0, size: 0x4000 };
    frame::write(&mut bytes, &sent(40, 5), &context, Set::of(&[Signal::HUP]), stack);
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(bytes[..128], sent(40, 5).to_bytes());
    let context_at = frame::CONTEXT;
    assert_eq!([0, 8, 16, 24, 32, 40].map(|at| word(context_at + at)), [0, 0, 0x9000, 0, 0x4000, 1]);
    let machine = context_at + 176;
    assert_eq!([0, 2, 10].map(|number| word(machine + 8 * number)), [0x4000, 0x8000, 77]);
    assert_eq!(word(machine + 256 + 8), 1.5f64.to_bits());
    assert_eq!(word(machine + 512), 0x61);
    assert_eq!(frame::place(0x8001), 0x8000 - 1088);
}

fn is_equal(one: &UserContext, other: &UserContext) -> bool {
    one.pc == other.pc && one.x == other.x && one.floating_point() == other.floating_point()
}

proptest! {
    #![proptest_config(property::cases(1024))]

    #[test]
    fn a_frame_gives_back_what_it_was_given(
        registers in prop::array::uniform32(any::<u64>()),
        unit in prop::array::uniform32(any::<u64>()),
        status in 0u64..0x100,
        mask in any::<u64>(),
        stack in (any::<u64>(), any::<u32>(), any::<u64>()),
    ) {
        let mut context = UserContext::new(registers[0] & !1, 0);
        for (number, &value) in registers.iter().enumerate().skip(1) {
            context.set_register(number, value);
        }
        context.floating_point_mut().f = unit;
        context.floating_point_mut().fcsr = status;
        let stack = Stack { start: stack.0, flags: stack.1, size: stack.2 };
        let mut bytes = [0; frame::SIZE];
        frame::write(&mut bytes, &sent(1, 0), &context, Set::mask(mask), stack);
        let mut other = UserContext::new(0, 0);
        prop_assert_eq!(frame::read(&bytes, &mut other), Ok((Set::mask(mask), stack)));
        prop_assert!(is_equal(&other, &context));
    }

    /// Any bytes give registers of a program, or are refused and change nothing.
    #[test]
    fn any_bytes_are_registers_or_refused(bytes in prop::collection::vec(any::<u8>(), frame::SIZE), known in any::<bool>()) {
        let mut bytes: [u8; frame::SIZE] = bytes.try_into().unwrap();
        if known {
            bytes[1076..].fill(0);
        }
        let before = UserContext::new(0x1000, 0x2000);
        let mut context = before.clone();
        match frame::read(&bytes, &mut context) {
            Ok((mask, _)) => {
                prop_assert!(mask.intersection(Set::UNBLOCKABLE).is_empty());
                prop_assert!(context.pc.is_multiple_of(2) && context.floating_point().fcsr < 0x100);
                prop_assert_eq!(&context.supervisor, &before.supervisor);
            }
            Err(_) => prop_assert!(!known && is_equal(&context, &before)),
        }
    }
}

/// A program that has chosen nothing ignores only the signal of a pipe without readers; a choice of its own counts, and
/// stays for a copy.
#[test]
fn broken_pipes_are_ignored_before_a_program_chooses() {
    let mut actions = Actions::new(BrokenPipe::FailsTheCall);
    assert_eq!(actions.disposition(Signal::PIPE), Disposition::Ignore);
    assert_eq!(actions.disposition(Signal::TERM), Disposition::Default(DefaultAction::End));
    actions.set(Signal::TERM, Action { handler: Action::IGNORE, ..Action::INITIAL }).unwrap();
    assert_eq!(actions.disposition(Signal::PIPE), Disposition::Ignore);
    actions.set(Signal::PIPE, Action::INITIAL).unwrap();
    assert_eq!(actions.disposition(Signal::PIPE), Disposition::Default(DefaultAction::End));
    let mut copy = actions.copy().unwrap();
    copy.forget_handlers();
    assert_eq!(copy.disposition(Signal::PIPE), Disposition::Default(DefaultAction::End));
    assert_eq!(copy.disposition(Signal::TERM), Disposition::Ignore);
}

/// As on Linux: a program that has chosen nothing ends by it, and so do its copies and the programs that follow it.
#[test]
fn broken_pipes_end_programs_that_begin_so() {
    let mut actions = Actions::new(BrokenPipe::FailsTheCall);
    actions.begin_with(BrokenPipe::EndsTheProgram);
    let ends = Disposition::Default(DefaultAction::End);
    assert_eq!((actions.get(Signal::PIPE), actions.disposition(Signal::PIPE)), (Action::INITIAL, ends));
    let mut copy = actions.copy().unwrap();
    copy.forget_handlers();
    assert_eq!(copy.disposition(Signal::PIPE), ends);
    copy.set(Signal::TERM, Action { handler: Action::IGNORE, ..Action::INITIAL }).unwrap();
    assert_eq!(copy.disposition(Signal::PIPE), ends);
    actions.set(Signal::PIPE, Action { handler: Action::IGNORE, ..Action::INITIAL }).unwrap();
    assert_eq!(actions.disposition(Signal::PIPE), Disposition::Ignore);
}

#[test]
fn expirations_of_a_pending_timer_are_counted() {
    let of = |id, value, overrun| Information {
        signal: Signal::ALRM,
        code: code::TIMER,
        details: Details::Timer { id, overrun, value },
    };
    let mut pending = Pending::new();
    assert!(!pending.count_overrun(&of(1, 5, 0)), "nothing is pending");
    pending.add(of(1, 5, 2), true).unwrap();
    assert!(!pending.count_overrun(&of(2, 5, 0)) && !pending.count_overrun(&of(1, 6, 0)), "other timers");
    assert!(!pending.count_overrun(&Information { signal: Signal::PROF, ..of(1, 5, 0) }));
    assert!(!pending.count_overrun(&Information::of_kernel(Signal::ALRM)));
    assert!(pending.count_overrun(&of(1, 5, 3)));
    assert_eq!(pending.take(Signal::ALRM), Some(of(1, 5, 6)));
    pending.add(of(1, 5, i32::MAX - 1), true).unwrap();
    assert!(pending.count_overrun(&of(1, 5, 3)));
    assert_eq!(pending.take(Signal::ALRM), Some(of(1, 5, i32::MAX)));
}
