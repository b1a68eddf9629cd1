/* The start of a C program: from the kernel's stack to main.
 *
 * The stack holds the number of arguments, pointers to them, NULL, pointers to the environment's strings, NULL, and
 * pairs of the auxiliary vector up to key 0 (the System V layout). There is no C library: compile with -ffreestanding,
 * and call the kernel through cops_unix.h.
 */
#include "cops_unix.h"

int main(int count, char **arguments, char **environment);

static const uint64_t *auxiliary;

__asm__(".section .text.start, \"ax\", @progbits\n"
        ".globl _start\n"
        "_start:\n"
        ".option push\n"
        ".option norelax\n"
        "la gp, __global_pointer$\n"
        ".option pop\n"
        "mv a0, sp\n"
        "andi sp, sp, -16\n"
        "li ra, 0\n" /* ends the chain of frames for debuggers */
        "li fp, 0\n"
        "li tp, 0\n"
        "call cops_start\n"
        "unimp\n"
        ".section .text\n");

_Noreturn void cops_start(long *stack);

/* The program's address differs each time. The linker lists the words that are addresses (SHT_RELR): an even entry is
 * the address of one, an odd one a bitmap, from bit 1 on, of the 63 words behind. Constants are writable until that is
 * done. */
extern char __program_start[], __constants_start[], __constants_end[];
extern const uint64_t __relocations_start[], __relocations_end[];

static void relocate(void)
{
    uintptr_t moved = (uintptr_t)__program_start;
    uintptr_t *next = 0;
    for (const uint64_t *entry = __relocations_start; entry < __relocations_end; entry++) {
        if (!(*entry & 1)) {
            next = (uintptr_t *)(moved + *entry);
            *next++ += moved;
            continue;
        }
        uintptr_t *word = next;
        for (uint64_t bits = *entry >> 1; bits; bits >>= 1, word++)
            if (bits & 1)
                *word += moved;
        next += 63;
    }
    cops_syscall(COPS_SYS_mprotect, (long)__constants_start, __constants_end - __constants_start, 1, 0, 0, 0);
}

_Noreturn void cops_start(long *stack)
{
    relocate();
    int count = (int)stack[0];
    char **arguments = (char **)(stack + 1);
    char **environment = arguments + count + 1;
    char **after = environment;
    while (*after)
        after++;
    auxiliary = (const uint64_t *)(after + 1);
    cops_exit(main(count, arguments, environment));
}

uint64_t cops_auxiliary_value(uint64_t key)
{
    for (const uint64_t *pair = auxiliary; pair[0]; pair += 2)
        if (pair[0] == key)
            return pair[1];
    return 0;
}

/* The compiler may call these for structures and arrays, also in freestanding programs. (The volatile accesses keep it
 * from making a loop below into a call of the function that the loop is.) */
void *memset(void *to, int value, size_t size);
void *memcpy(void *restrict to, const void *restrict from, size_t size);
void *memmove(void *to, const void *from, size_t size);
int memcmp(const void *one, const void *other, size_t size);

void *memset(void *to, int value, size_t size)
{
    volatile unsigned char *bytes = to;
    for (size_t index = 0; index < size; index++)
        bytes[index] = (unsigned char)value;
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t size)
{
    volatile unsigned char *bytes = to;
    const unsigned char *source = from;
    for (size_t index = 0; index < size; index++)
        bytes[index] = source[index];
    return to;
}

void *memmove(void *to, const void *from, size_t size)
{
    volatile unsigned char *bytes = to;
    const unsigned char *source = from;
    if ((uintptr_t)to <= (uintptr_t)from) {
        for (size_t index = 0; index < size; index++)
            bytes[index] = source[index];
    } else {
        for (size_t index = size; index > 0; index--)
            bytes[index - 1] = source[index - 1];
    }
    return to;
}

int memcmp(const void *one, const void *other, size_t size)
{
    const volatile unsigned char *left = one;
    const unsigned char *right = other;
    for (size_t index = 0; index < size; index++)
        if (left[index] != right[index])
            return left[index] < right[index] ? -1 : 1;
    return 0;
}
