/* Functions with a chosen first instruction: the instruction under the breakpoint sets the price of a hit.
 * Each takes one number, counts the call, and returns the number plus one. `entry_loop_head` is the exception:
 * its first instruction is a branch target, so a breakpoint there counts iterations. */
#include "counters.h"
#include "function.h"

    .text

#define COUNT(id) incq %fs:call_counts@tpoff + 8 * (id)

.macro frame
    push %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    mov %rsp, %rbp
.endm

.macro unframe
    pop %rbp
    .cfi_def_cfa_offset 8
    .cfi_restore %rbp
.endm

begin entry_push
    frame
    COUNT(COUNT_PUSH)
    lea 1(%rdi), %rax
    unframe
    ret
end entry_push

begin entry_nop
    nop
    COUNT(COUNT_NOP)
    lea 1(%rdi), %rax
    ret
end entry_nop

begin entry_nop5
    .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
    COUNT(COUNT_NOP5)
    lea 1(%rdi), %rax
    ret
end entry_nop5

begin entry_endbr_push
    endbr64
    frame
    COUNT(COUNT_ENDBR_PUSH)
    lea 1(%rdi), %rax
    unframe
    ret
end entry_endbr_push

begin entry_mov
    mov %rdi, %rax
    COUNT(COUNT_MOV)
    add $1, %rax
    ret
end entry_mov

begin entry_sub
    sub $24, %rsp
    .cfi_adjust_cfa_offset 24
    COUNT(COUNT_SUB)
    lea 1(%rdi), %rax
    add $24, %rsp
    .cfi_adjust_cfa_offset -24
    ret
end entry_sub

begin entry_test_je
    test %rdi, %rdi
    je 1f
    COUNT(COUNT_TEST_JE)
    lea 1(%rdi), %rax
    ret
1:  COUNT(COUNT_TEST_JE)
    mov $1, %eax
    ret
end entry_test_je

/* Two ways out, chosen by the argument's lowest bit. */
begin exits_two
    frame
    COUNT(COUNT_TWO_EXITS)
    test $1, %dil
    jne 1f
    lea 1(%rdi), %rax
    nop
    unframe
    ret
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
1:  mov %rdi, %rax
    add $1, %rax
    unframe
    ret
end exits_two

/* The only way out is a jump to another function. */
begin exits_tail_jump
    frame
    COUNT(COUNT_TAIL_JUMP)
    unframe
    jmp entry_mov
end exits_tail_jump

/* Runs `argument` times round its own first instruction (at least once); counts calls at the end. */
begin entry_loop_head
    dec %rdi
    jg entry_loop_head
    COUNT(COUNT_LOOP_HEAD)
    lea 1(%rdi), %rax
    ret
end entry_loop_head

.altmacro
.macro big_function number
begin big\number
    frame
    COUNT(COUNT_BIG)
    lea 1(%rdi), %rax
    unframe
    ret
end big\number
    .section .data.rel.ro.big, "aw"
    .quad big\number
    .text
.endm

    .section .data.rel.ro.big, "aw"
    .p2align 3
    .globl big_functions
    .type big_functions, @object
big_functions:
    .text
.set number, 0
.rept BIG_FUNCTIONS
    big_function %number
    .set number, number + 1
.endr
    .section .data.rel.ro.big, "aw"
    .size big_functions, . - big_functions

    .section .note.GNU-stack, "", @progbits
