/* A library with a restartable sequence, described as linux/rseq.h wants it, and a function without one. */
	.text
	.globl sequence_add
	.type sequence_add, @function
	.p2align 4
sequence_add:
	push %rbp
	lea descriptor(%rip), %rax
	mov %rax, (%rdi)
.Lbegin:
	mov (%rsi), %rax
	inc %rax
	mov %rax, (%rsi)
.Lend:
	pop %rbp
	ret
	.size sequence_add, . - sequence_add

	.globl sequence_none
	.type sequence_none, @function
	.p2align 4
sequence_none:
	push %rbp
	pop %rbp
	ret
	.size sequence_none, . - sequence_none

	.p2align 4
.Labort:
	jmp .Lbegin

	.section __rseq_cs, "aw", @progbits
	.balign 32
descriptor:
	.long 0, 0
	.quad .Lbegin, .Lend - .Lbegin, .Labort

	.section .note.GNU-stack, "", @progbits
