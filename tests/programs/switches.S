/* A library whose only function switches stacks: keeps the stack pointer in *rdi, and goes on with the one in rsi. */
    .text
    .globl own_switch
    .type own_switch, @function
own_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
    .size own_switch, . - own_switch
    .section .note.GNU-stack, "", @progbits
