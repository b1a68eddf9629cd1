//! The registers of a program while it does not run.

use core::mem::offset_of;

/// The state of a user program between two visits to user mode.
///
/// The floating-point registers are loaded only when the program uses them, and saved by
/// [`Machine::keep_floating_point`](crate::Machine::keep_floating_point) only when it changed them; the program never
/// sees the difference. `token` names the register contents: a hart that still holds the contents of that
/// token need not load them again. Code that changes the registers here must therefore clear the token, which
/// [`floating_point_mut`](UserContext::floating_point_mut) does. Another token does the same for the supervisor
/// registers of a virtualised program; [`supervisor_mut`](UserContext::supervisor_mut) clears it.
#[derive(Clone, Debug)]
#[repr(C, align(16))]
pub struct UserContext {
    /// Address of the next instruction.
    pub pc: u64,
    /// The registers x1 (`ra`) to x31 (`t6`), in this order.
    pub x: [u64; 31],
    /// The kernel's stack pointer while the program runs; owned by the machine's assembly.
    kernel_stack: u64,
    token: u64,
    floating_point: FloatingPoint,
    /// Additional registers of a virtualised program, or of one that is armed; unused in other programs.
    pub supervisor: InterruptRegisters,
    supervisor_token: u64,
}

/// The registers with which a program handles its own interrupts without the kernel: supervisor registers of a
/// virtualised program, those of the N extension of an armed one. A process has one back end for its life, and so one
/// of the two sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterruptRegisters {
    /// Status register: whether interrupts are enabled (bit 0 in the N extension), and were before the last one. Bits
    /// that concern the machine below are ignored.
    pub status: u64,
    /// Interrupt-enable bits.
    pub enabled: u64,
    /// Address of the program's interrupt handler.
    pub vector: u64,
    /// Scratch register of the handler.
    pub scratch: u64,
    /// Address of the interrupted instruction.
    pub interrupted: u64,
    /// Cause of the interrupt.
    pub cause: u64,
    /// Deadline of the program's own timer, in ticks.
    pub deadline: u64,
    /// The kernel's interrupt to the program: 1 while it is pending.
    pub notified: u64,
}

impl InterruptRegisters {
    /// No handler, nothing enabled, no deadline.
    pub const NEW: InterruptRegisters = InterruptRegisters {
        status: 0,
        enabled: 0,
        vector: 0,
        scratch: 0,
        interrupted: 0,
        cause: 0,
        deadline: u64::MAX,
        notified: 0,
    };
}

/// The floating-point registers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FloatingPoint {
    /// f0 to f31 as bits.
    pub f: [u64; 32],
    /// Rounding mode and accrued exceptions.
    pub fcsr: u64,
}

impl UserContext {
    /// Makes a program that starts at `pc` with this stack pointer and zeros everywhere else.
    pub const fn new(pc: u64, stack: u64) -> UserContext {
        let mut x = [0; 31];
        x[1] = stack;
        let floating_point = FloatingPoint { f: [0; 32], fcsr: 0 };
        UserContext {
            pc,
            x,
            kernel_stack: 0,
            token: 0,
            floating_point,
            supervisor: InterruptRegisters::NEW,
            supervisor_token: 0,
        }
    }

    /// Returns the value of register x`number`; x0 is 0.
    ///
    /// # Panics
    /// If `number` is greater than 31.
    pub const fn register(&self, number: usize) -> u64 {
        if number == 0 { 0 } else { self.x[number - 1] }
    }

    /// Sets register x`number`; setting x0 has no effect.
    ///
    /// # Panics
    /// If `number` is greater than 31.
    pub const fn set_register(&mut self, number: usize, value: u64) {
        if number != 0 {
            self.x[number - 1] = value;
        }
    }

    /// Returns the arguments of a call, a0 to a5.
    pub const fn arguments(&self) -> [u64; 6] {
        [self.x[9], self.x[10], self.x[11], self.x[12], self.x[13], self.x[14]]
    }

    /// Returns the number of a system call, a7.
    pub const fn call_number(&self) -> u64 {
        self.x[16]
    }

    /// Sets the result of a call, a0.
    pub const fn set_result(&mut self, value: u64) {
        self.x[9] = value;
    }

    /// Returns the stack pointer.
    pub const fn stack(&self) -> u64 {
        self.x[1]
    }

    /// Returns the floating-point registers.
    pub const fn floating_point(&self) -> &FloatingPoint {
        &self.floating_point
    }

    /// Returns the floating-point registers, mutable; clears the token.
    pub const fn floating_point_mut(&mut self) -> &mut FloatingPoint {
        self.token = 0;
        &mut self.floating_point
    }

    /// Forbids or allows floating point: a forbidden floating-point instruction is an illegal instruction.
    pub const fn forbid_floating_point(&mut self, forbidden: bool) {
        if forbidden != self.is_floating_point_forbidden() {
            self.token = if forbidden { FORBIDDEN } else { 0 };
        }
    }

    /// Returns whether [`forbid_floating_point`](UserContext::forbid_floating_point) has forbidden floating point.
    pub const fn is_floating_point_forbidden(&self) -> bool {
        self.token == FORBIDDEN
    }

    /// Returns the supervisor registers of a virtualised program that does not run, mutable; clears their token.
    pub const fn supervisor_mut(&mut self) -> &mut InterruptRegisters {
        self.supervisor_token = 0;
        &mut self.supervisor
    }

    /// For machines: the token of the supervisor registers' contents; 0 if no hart can hold them.
    #[doc(hidden)]
    pub const fn supervisor_token(&self) -> u64 {
        self.supervisor_token
    }

    /// For machines: sets the token of the supervisor registers' contents.
    #[doc(hidden)]
    pub const fn set_supervisor_token(&mut self, token: u64) {
        self.supervisor_token = token;
    }

    /// For machines: the token of the register contents; 0 if no hart can hold them.
    #[doc(hidden)]
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// For machines: sets the token of the register contents.
    #[doc(hidden)]
    pub const fn set_token(&mut self, token: u64) {
        self.token = token;
    }
}

/// The token of a program that must not use floating point. No machine gives it to register contents.
const FORBIDDEN: u64 = u64::MAX;

/// Field offsets for the machine's assembly.
impl UserContext {
    /// Offset of register x1; x`n` is 8 (n - 1) bytes further.
    #[doc(hidden)]
    pub const OFFSET_X1: usize = offset_of!(UserContext, x);
    /// Offset of the kernel's stack pointer.
    #[doc(hidden)]
    pub const OFFSET_KERNEL_STACK: usize = offset_of!(UserContext, kernel_stack);
    /// Offset of f0; f`n` is 8 n bytes further, then comes fcsr.
    #[doc(hidden)]
    pub const OFFSET_F0: usize = offset_of!(UserContext, floating_point);
}

const _: () = {
    // The assembly addresses registers as 8 times their number, with `pc` in the place of x0.
    assert!(offset_of!(UserContext, pc) == 0);
    assert!(UserContext::OFFSET_X1 == 8);
    assert!(offset_of!(FloatingPoint, fcsr) == 256);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_their_usual_names() {
        let mut context = UserContext::new(0x1000, 0x2000);
        assert_eq!(context.register(2), 0x2000);
        assert_eq!(context.stack(), 0x2000);
        for number in 10..=17 {
            context.set_register(number, number as u64);
        }
        assert_eq!(context.arguments(), [10, 11, 12, 13, 14, 15]);
        assert_eq!(context.call_number(), 17);
        context.set_result(7);
        assert_eq!(context.register(10), 7);
        context.set_register(0, 9);
        assert_eq!(context.register(0), 0);
    }

    #[test]
    fn floating_point_can_be_forbidden_and_allowed_again() {
        let mut context = UserContext::new(0, 0);
        context.set_token(5);
        context.forbid_floating_point(false);
        assert_eq!(context.token(), 5);
        context.forbid_floating_point(true);
        assert!(context.is_floating_point_forbidden());
        context.forbid_floating_point(false);
        assert_eq!(context.token(), 0);
    }

    #[test]
    fn changing_supervisor_registers_makes_the_copy_in_a_hart_stale() {
        let mut context = UserContext::new(0, 0);
        assert_eq!(context.supervisor_token(), 0);
        context.set_supervisor_token(5);
        assert_eq!((context.supervisor_token(), context.token()), (5, 0));
        context.supervisor_mut().vector = 8;
        assert_eq!((context.supervisor_token(), context.supervisor.vector), (0, 8));
    }

    #[test]
    fn changing_floating_point_state_makes_copies_in_registers_stale() {
        let mut context = UserContext::new(0, 0);
        context.set_token(5);
        context.floating_point_mut().f[3] = 1;
        assert_eq!(context.token(), 0);
        assert_eq!(context.floating_point().f[3], 1);
    }
}
