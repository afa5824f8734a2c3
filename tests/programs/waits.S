/* A function that cannot be timed by its ways out: it jumps to an address that is computed, so where it leaves is not known.
 * It waits as long as it is told, ns, and comes back. */
    .text
    .p2align 4
    .globl waits_oddly
    .type waits_oddly, @function
waits_oddly:
    .cfi_startproc
    push %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    mov %rsp, %rbp
    .cfi_def_cfa_register %rbp
    lea 1f(%rip), %rax
    mov computed(%rip), %rcx
    xor %rcx, %rax
    jmp *%rax
1:
    call wait_ns
    pop %rbp
    .cfi_def_cfa %rsp, 8
    ret
    .cfi_endproc
    .size waits_oddly, . - waits_oddly

/* Its caller's caller waits: it jumps on with the stack as it found it. */
    .p2align 4
    .globl waits_beyond
    .type waits_beyond, @function
waits_beyond:
    .cfi_startproc
    push %rbp
    .cfi_def_cfa_offset 16
    pop %rbp
    .cfi_def_cfa_offset 8
    jmp waits_oddly
    .cfi_endproc
    .size waits_beyond, . - waits_beyond

/* Nothing is changed in the address by what stands here. */
    .bss
    .p2align 3
    .type computed, @object
    .size computed, 8
computed:
    .zero 8
    .section .note.GNU-stack, "", @progbits
