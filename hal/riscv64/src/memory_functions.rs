//! `memcpy` and `memset`, which the compiler calls for each value that it moves and each one that it clears.
//!
//! Those of `compiler_builtins` move a word for each five instructions, and for each nine if the two sides are aligned
//! differently; a byte costs six. A request to a server over the network makes some thirty calls of them, which took a
//! tenth of its instructions. These move eight words between two looks at the length, and the rest by the bits of the
//! length. They make only aligned accesses, since harts may trap on others, and read no word without a byte of the
//! source.
//!
//! The linker takes them instead of those of `compiler_builtins`, whose symbols are weak. They are assembly: the
//! compiler would make a call of `memcpy` out of the same loop in Rust.

use core::arch::global_asm;

global_asm!(
    r#"
    .section .text.memcpy, "ax"

# memcpy(a0: destination, a1: source, a2: length) -> a0
    .balign 4
    .globl memcpy
    .type memcpy, @function
memcpy:
    mv      a3, a0
    or      t0, a0, a1
    andi    t0, t0, 7
    bnez    t0, 6f
    # Both sides are aligned.
1:  li      t0, 64
    bltu    a2, t0, 3f
2:  ld      t1, 0(a1)
    ld      t2, 8(a1)
    ld      t3, 16(a1)
    ld      t4, 24(a1)
    ld      a4, 32(a1)
    ld      a5, 40(a1)
    ld      a6, 48(a1)
    ld      a7, 56(a1)
    sd      t1, 0(a3)
    sd      t2, 8(a3)
    sd      t3, 16(a3)
    sd      t4, 24(a3)
    sd      a4, 32(a3)
    sd      a5, 40(a3)
    sd      a6, 48(a3)
    sd      a7, 56(a3)
    addi    a2, a2, -64
    addi    a1, a1, 64
    addi    a3, a3, 64
    bgeu    a2, t0, 2b
3:  andi    t0, a2, 32
    beqz    t0, 4f
    ld      t1, 0(a1)
    ld      t2, 8(a1)
    ld      t3, 16(a1)
    ld      t4, 24(a1)
    sd      t1, 0(a3)
    sd      t2, 8(a3)
    sd      t3, 16(a3)
    sd      t4, 24(a3)
    addi    a1, a1, 32
    addi    a3, a3, 32
4:  andi    t0, a2, 16
    beqz    t0, 5f
    ld      t1, 0(a1)
    ld      t2, 8(a1)
    sd      t1, 0(a3)
    sd      t2, 8(a3)
    addi    a1, a1, 16
    addi    a3, a3, 16
5:  andi    t0, a2, 8
    beqz    t0, 5f
    ld      t1, 0(a1)
    sd      t1, 0(a3)
    addi    a1, a1, 8
    addi    a3, a3, 8
5:  andi    t0, a2, 7
    beqz    t0, 9f
    andi    t0, a2, 4
    beqz    t0, 5f
    lw      t1, 0(a1)
    sw      t1, 0(a3)
    addi    a1, a1, 4
    addi    a3, a3, 4
5:  andi    t0, a2, 2
    beqz    t0, 5f
    lh      t1, 0(a1)
    sh      t1, 0(a3)
    addi    a1, a1, 2
    addi    a3, a3, 2
5:  andi    t0, a2, 1
    beqz    t0, 9f
    lb      t1, 0(a1)
    sb      t1, 0(a3)
9:  ret

    # A side is not aligned. Mostly both are alike: a value without its first byte, which tells what it is.
6:  xor     t0, a0, a1
    andi    t0, t0, 7
    bnez    t0, 6f
    li      t0, 8
    bltu    a2, t0, 8f
    andi    t0, a3, 1
    beqz    t0, 5f
    lb      t1, 0(a1)
    addi    a1, a1, 1
    sb      t1, 0(a3)
    addi    a3, a3, 1
    addi    a2, a2, -1
5:  andi    t0, a3, 2
    beqz    t0, 5f
    lh      t1, 0(a1)
    addi    a1, a1, 2
    sh      t1, 0(a3)
    addi    a3, a3, 2
    addi    a2, a2, -2
5:  andi    t0, a3, 4
    beqz    t0, 1b
    lw      t1, 0(a1)
    addi    a1, a1, 4
    sw      t1, 0(a3)
    addi    a3, a3, 4
    addi    a2, a2, -4
    j       1b

    # They differ. First up to the first aligned word of the destination.
6:  li      t0, 24
    bltu    a2, t0, 8f
    neg     t0, a3
    andi    t0, t0, 7
    beqz    t0, 7f
    sub     a2, a2, t0
    add     t0, t0, a3
5:  lb      t1, 0(a1)
    addi    a1, a1, 1
    sb      t1, 0(a3)
    addi    a3, a3, 1
    bne     a3, t0, 5b
7:  andi    t0, a1, 7
    # Words of the source are read, shifted together and written: a6 has what is left of the last one. The next one
    # always has a byte that is wanted.
    slli    t3, t0, 3
    neg     t4, t3
    sub     a1, a1, t0
    ld      a6, 0(a1)
    srl     a6, a6, t3
    li      a7, 32
    bltu    a2, a7, 7f
5:  ld      t1, 8(a1)
    ld      t2, 16(a1)
    ld      a4, 24(a1)
    ld      a5, 32(a1)
    addi    a1, a1, 32
    sll     t5, t1, t4
    or      t5, t5, a6
    srl     t1, t1, t3
    sll     t6, t2, t4
    or      t6, t6, t1
    srl     t2, t2, t3
    sd      t5, 0(a3)
    sll     t5, a4, t4
    or      t5, t5, t2
    srl     a4, a4, t3
    sd      t6, 8(a3)
    sll     t6, a5, t4
    or      t6, t6, a4
    srl     a6, a5, t3
    sd      t5, 16(a3)
    sd      t6, 24(a3)
    addi    a2, a2, -32
    addi    a3, a3, 32
    bgeu    a2, a7, 5b
7:  li      a7, 8
    bltu    a2, a7, 7f
5:  ld      t1, 8(a1)
    addi    a1, a1, 8
    sll     t5, t1, t4
    or      t5, t5, a6
    srl     a6, t1, t3
    sd      t5, 0(a3)
    addi    a2, a2, -8
    addi    a3, a3, 8
    bgeu    a2, a7, 5b
7:  add     a1, a1, t0
    # A few bytes, in pairs.
8:  andi    t0, a2, 1
    beqz    t0, 7f
    lb      t1, 0(a1)
    addi    a1, a1, 1
    sb      t1, 0(a3)
    addi    a3, a3, 1
7:  andi    a2, a2, -2
    add     a2, a2, a3
    beq     a2, a3, 9f
5:  lb      t1, 0(a1)
    lb      t2, 1(a1)
    addi    a1, a1, 2
    sb      t1, 0(a3)
    sb      t2, 1(a3)
    addi    a3, a3, 2
    bne     a3, a2, 5b
9:  ret
    .size memcpy, . - memcpy

    .section .text.memset, "ax"

# memset(a0: destination, a1: byte, a2: length) -> a0
    .balign 4
    .globl memset
    .type memset, @function
memset:
    mv      a3, a0
    li      t0, 16
    bltu    a2, t0, 5f
    andi    a1, a1, 0xff
    beqz    a1, 1f
    slli    t0, a1, 8
    or      a1, a1, t0
    slli    t0, a1, 16
    or      a1, a1, t0
    slli    t0, a1, 32
    or      a1, a1, t0
    # Up to the first aligned word.
1:  neg     t0, a3
    andi    t0, t0, 7
    beqz    t0, 2f
    sub     a2, a2, t0
    add     t0, t0, a3
1:  sb      a1, 0(a3)
    addi    a3, a3, 1
    bne     a3, t0, 1b
2:  li      t0, 64
    bltu    a2, t0, 3f
2:  sd      a1, 0(a3)
    sd      a1, 8(a3)
    sd      a1, 16(a3)
    sd      a1, 24(a3)
    sd      a1, 32(a3)
    sd      a1, 40(a3)
    sd      a1, 48(a3)
    sd      a1, 56(a3)
    addi    a2, a2, -64
    addi    a3, a3, 64
    bgeu    a2, t0, 2b
3:  andi    t0, a2, 32
    beqz    t0, 3f
    sd      a1, 0(a3)
    sd      a1, 8(a3)
    sd      a1, 16(a3)
    sd      a1, 24(a3)
    addi    a3, a3, 32
3:  andi    t0, a2, 16
    beqz    t0, 3f
    sd      a1, 0(a3)
    sd      a1, 8(a3)
    addi    a3, a3, 16
3:  andi    t0, a2, 8
    beqz    t0, 4f
    sd      a1, 0(a3)
    addi    a3, a3, 8
4:  andi    a2, a2, 7
5:  beqz    a2, 9f
    add     a2, a2, a3
5:  sb      a1, 0(a3)
    addi    a3, a3, 1
    bne     a3, a2, 5b
9:  ret
    .size memset, . - memset
"#
);
