/* A library that takes long to look through: 4 MiB of functions that load rsp from rbp, none of which switches stacks. */
    .text
    .globl slow
    .type slow, @function
slow:
    ret
    .size slow, . - slow
    .rept 1 << 18
    push %rbp
    mov %rsi, %rbp
    mov %rsp, %rbp
    push %rdi
    pop %rax
    mov %rbp, %rsp
    leave
    ret
    .balign 8
    .endr
    .section .note.GNU-stack, "", @progbits
