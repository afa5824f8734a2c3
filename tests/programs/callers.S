/* Callers of `callee` whose return addresses are known: each keeps the distance from its begin to what stands behind its call.
 * Each takes one number, calls, and returns the number plus one. */
#include "function.h"

    .text

.macro caller name
begin \name
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset %rbx, -16
    mov %rdi, %rbx
.endm

/* Behind the call. No symbol stands there: something could jump to one. */
.macro behind name
.L\name\()_behind:
    .pushsection .rodata
    .p2align 3
    .globl \name\()_behind
    .type \name\()_behind, @object
    .size \name\()_behind, 4
\name\()_behind:
    .long .L\name\()_behind - \name
    .popsection
.endm

.macro leave name
    lea 1(%rbx), %rax
    pop %rbx
    ret
end \name
.endm

/* Single-stepped; an emulated jump stands near. */
caller caller_plain
    call callee
    behind caller_plain
    test %rax, %rax
    jne 1f
    nop
1:
leave caller_plain

caller caller_push
    call callee
    behind caller_push
    push %rax
    pop %rax
leave caller_push

/* No instruction with a lock prefix can be probed: the one behind it is taken. */
caller caller_locked
    call callee
    behind caller_locked
    lock incq counter(%rip)
    test %rax, %rax
    je 1f
1:
leave caller_locked

/* `pushf` and `popf` cannot be probed either, and move the stack pointer. */
caller caller_flags
    call callee
    behind caller_flags
    pushf
    pushf
    mov %rax, %rcx
    push %rcx
    pop %rcx
    popf
    popf
leave caller_flags

/* Reached by the return and, where the argument is odd, by a jump. */
caller caller_joined
    test $1, %dil
    jne 1f
    call callee
    behind caller_joined
1:  mov %rbx, %rcx
leave caller_joined

caller caller_pointer
    lea callee(%rip), %rax
    call *%rax
    behind caller_pointer
    xor %ecx, %ecx
leave caller_pointer

/* The linker makes `addr32 call` of it. */
caller caller_relaxed
    call *callee@GOTPCREL(%rip)
    behind caller_relaxed
    xor %ecx, %ecx
leave caller_relaxed

/* Through the slot of another module's function, and through its stub. */
caller caller_slot
    call *getppid@GOTPCREL(%rip)
    behind caller_slot
    xor %ecx, %ecx
leave caller_slot

caller caller_stub
    call getgid@PLT
    behind caller_stub
    xor %ecx, %ecx
leave caller_stub

/* Two calls, one right behind the other: the second is the site of the first. */
caller caller_twice
    call callee
    behind caller_twice
    call callee
    xor %ecx, %ecx
leave caller_twice

/* The kernel may put a call in the place of a nop of five bytes. */
caller caller_nop5
    call callee
    behind caller_nop5
    .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
    xor %ecx, %ecx
leave caller_nop5

/* The first site is stepped. Before the cheaper one the stack pointer has moved. */
caller caller_moved
    call callee
    behind caller_moved
    sub $16, %rsp
    push %rax
    add $24, %rsp
leave caller_moved

/* What it calls jumps on: `callee` returns to here. */
caller caller_hop
    call hop
    behind caller_hop
    xor %ecx, %ecx
leave caller_hop

    .p2align 4
    .globl hop
    .type hop, @function
hop:
    lea (%rdi, %rdi), %rdi
    jmp callee
    .size hop, . - hop

/* Bytes that are no instruction stand in its symbol: what stands behind the call could be data as well. */
caller caller_data
    call callee
    behind caller_data
    xor %ecx, %ecx
    lea 1(%rbx), %rax
    pop %rbx
    ret
    .cfi_endproc
    .byte 6, 6, 6, 6
    .size caller_data, . - caller_data

/* Nothing near can be probed. */
caller caller_far
    call callee
    behind caller_far
    .rept 18
    lock incq counter(%rip)
    .endr
leave caller_far

/* Its own restartable sequence. */
caller caller_sequence
    call callee
    behind caller_sequence
    xor %ecx, %ecx
.Lsequence_begin:
    mov %rbx, %rcx
.Lsequence_end:
leave caller_sequence

/* Where the argument is odd it calls from its cold part. */
caller caller_cold
    test $1, %dil
    jne caller_cold.cold
.Lback:
leave caller_cold
    .section .text.unlikely, "ax", @progbits
    .type caller_cold.cold, @function
caller_cold.cold:
    .cfi_startproc
    .cfi_def_cfa_offset 16
    .cfi_offset %rbx, -16
    call callee
    mov %rbx, %rcx
    jmp .Lback
    .cfi_endproc
    .size caller_cold.cold, . - caller_cold.cold
    .text

/* Pushes the return address by hand. Data that look like a call stand before it. */
caller caller_pushed
    lea .Lcaller_pushed_behind(%rip), %rax
    push %rax
    jmp callee
    .byte 0xe8, 0, 0, 0, 0
    behind caller_pushed
    xor %ecx, %ecx
leave caller_pushed

/* Is patched at run time, before its call or behind it. */
caller caller_patched
    mov $1, %ecx
    call callee
    behind caller_patched
    mov $1, %ecx
leave caller_patched

    .p2align 4
    .long 0x53053053
.Labort:
    jmp .Lsequence_begin

    .section __rseq_cs, "aw", @progbits
    .balign 32
    .long 0, 0
    .quad .Lsequence_begin, .Lsequence_end - .Lsequence_begin, .Labort

    .bss
    .p2align 3
counter:
    .quad 0

    .section .note.GNU-stack, "", @progbits
