/* Functions of six arguments whose cheapest instruction stands behind one that has overwritten some. Each returns 0. */
#include "function.h"

    .text

/* The first instruction is the cheapest. */
begin takes_push
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset %rbx, -16
    xor %eax, %eax
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
end takes_push

/* As sqlite3_result_text64: the fourth is copied, then overwritten, and the push comes then. */
begin takes_fourth
    mov %rcx, %rax
    cmp $4, %r8b
    mov $2, %ecx
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset %rbx, -16
    cmove %ecx, %r8d
    xor %eax, %eax
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
end takes_fourth

/* The fourth is overwritten before anything has read it: it is no parameter. */
begin takes_unread
    mov $2, %ecx
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset %rbx, -16
    xor %eax, %eax
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
end takes_unread

/* As __gmpn_hgcd_matrix_init: the second is counted up before the push. */
begin takes_second
    add $1, %rsi
    push %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    xor %eax, %eax
    pop %rbp
    .cfi_def_cfa_offset 8
    ret
end takes_second

/* Rounds come back to its first instruction; the caller's arguments are there in the first round only. */
begin takes_rounds
    add $1, %rdi
    sub $1, %r9
    test $3, %r9b
    jne takes_rounds
    xor %eax, %eax
    ret
end takes_rounds

    .section .note.GNU-stack, "", @progbits
