//! Instructions as words: those of the N extension and UIPI have no names in any assembler.

/// A register's number.
pub type Register = u32;

/// The register that is always zero.
pub const ZERO: Register = 0;
/// Argument and result registers.
pub const A0: Register = 10;
/// The second one.
pub const A1: Register = 11;
/// The third one.
pub const A2: Register = 12;
/// The fourth one.
pub const A3: Register = 13;
/// The fifth one.
pub const A4: Register = 14;

/// Ends a piece of code: a trap to supervisor mode, from either mode.
pub const EBREAK: u32 = 0x0010_0073;
/// Ends a piece of code of a guest: a breakpoint alone would be the same.
pub const ECALL: u32 = 0x0000_0073;
/// Does nothing.
pub const NOP: u32 = 0x0000_0013;
/// Returns from a trap that user mode has handled.
pub const URET: u32 = 0x0020_0073;

/// UIPI's functions.
pub const SEND: u32 = 0;
/// Takes the pending vectors.
pub const READ: u32 = 1;
/// Adds to the pending vectors.
pub const WRITE: u32 = 2;
/// Lets the receiver be interrupted.
pub const ACTIVATE: u32 = 3;
/// Lets it no longer be interrupted.
pub const DEACTIVATE: u32 = 4;

const fn system(function: u32, csr: u32, source: u32, destination: Register) -> u32 {
    csr << 20 | source << 15 | function << 12 | destination << 7 | 0x73
}

/// Writes a control and status register and reads its former value.
pub const fn csrrw(destination: Register, csr: u32, source: Register) -> u32 {
    system(1, csr, source, destination)
}

/// Reads a control and status register, and sets the bits of `source`.
pub const fn csrrs(destination: Register, csr: u32, source: Register) -> u32 {
    system(2, csr, source, destination)
}

/// Reads a control and status register.
pub const fn csrr(destination: Register, csr: u32) -> u32 {
    csrrs(destination, csr, ZERO)
}

/// Sets bits of a control and status register.
pub const fn csrsi(csr: u32, bits: u32) -> u32 {
    system(6, csr, bits, ZERO)
}

/// Clears bits of a control and status register.
pub const fn csrci(csr: u32, bits: u32) -> u32 {
    system(7, csr, bits, ZERO)
}

/// An instruction of custom-3 with the format of UIPI.
pub const fn custom3(function7: u32, rs2: Register, rs1: Register, function3: u32, rd: Register) -> u32 {
    function7 << 25 | rs2 << 20 | rs1 << 15 | function3 << 12 | rd << 7 | 0x7b
}

/// An instruction of UIPI.
pub const fn uipi(function: u32, destination: Register, source: Register) -> u32 {
    custom3(function, ZERO, source, 6, destination)
}

/// Adds a small number.
pub const fn addi(destination: Register, source: Register, number: i32) -> u32 {
    (number as u32 & 0xfff) << 20 | source << 15 | destination << 7 | 0x13
}

/// Loads a doubleword.
pub const fn ld(destination: Register, address: Register) -> u32 {
    address << 15 | 3 << 12 | destination << 7 | 0x03
}

/// Loads a word.
pub const fn lw(destination: Register, address: Register) -> u32 {
    address << 15 | 2 << 12 | destination << 7 | 0x03
}

/// Stores a doubleword.
pub const fn sd(value: Register, address: Register) -> u32 {
    value << 20 | address << 15 | 3 << 12 | 0x23
}

const fn branch(function: u32, register: Register, instructions: i32) -> u32 {
    let offset = (instructions * 4) as u32;
    (offset >> 12 & 1) << 31
        | (offset >> 5 & 0x3f) << 25
        | register << 15
        | function << 12
        | (offset >> 1 & 0xf) << 8
        | (offset >> 11 & 1) << 7
        | 0x63
}

/// Branches by this number of instructions if a register is not zero.
pub const fn bnez(register: Register, instructions: i32) -> u32 {
    branch(1, register, instructions)
}

/// Branches by this number of instructions if a register is zero.
pub const fn beqz(register: Register, instructions: i32) -> u32 {
    branch(0, register, instructions)
}
