/* A library whose symbols are stripped but for what it exports: the rest is known by its unwind tables alone. */
#include "function.h"

	.text

/* One way out here, one in its split-off part. */
begin split_parts
	push %rbx
	.cfi_def_cfa_offset 16
	.cfi_offset %rbx, -16
	test %rdi, %rdi
	je .Lpart
	pop %rbx
	.cfi_def_cfa_offset 8
	ret
end split_parts

/* Goes on to a function that has no symbol. */
begin split_tail
	inc %rdi
	jmp .Lnameless
end split_tail

begin split_conditional
	test %rdi, %rdi
	je .Lnameless
	ret
end split_conditional

begin split_stub
	xor %eax, %eax
	jmp getpid@PLT
end split_stub

begin split_pointer
	mov %rdi, %rax
	jmp *slot(%rip)
end split_pointer

/* A switch: it jumps through a pointer and does not leave. */
begin split_switch
	cmp $1, %rdi
	ja 3f
	lea .Ltable(%rip), %rdx
	movslq (%rdx, %rdi, 4), %rax
	add %rdx, %rax
	jmp *%rax
.Lone:
	mov $1, %eax
	ret
.Ltwo:
	mov $2, %eax
	ret
3:	xor %eax, %eax
	ret
end split_switch

/* States no size. */
	.p2align 4
	.globl split_sizeless
	.type split_sizeless, @function
split_sizeless:
	.cfi_startproc
	push %rbx
	.cfi_def_cfa_offset 16
	pop %rbx
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc

/* More parts than any compiler makes. */
.macro scatter
	je .Lscatter\@
	.pushsection .text.unlikely, "ax", @progbits
.Lscatter\@:
	.cfi_startproc
	.cfi_def_cfa_offset 16
	ret
	.cfi_endproc
	.popsection
.endm

	.p2align 4
	.globl split_scattered
	.type split_scattered, @function
split_scattered:
	test %rdi, %rdi
	.rept 65
	scatter
	.endr
	ret
	.size split_scattered, . - split_scattered

/* Its unwind data reach over another function. */
	.p2align 4
	.globl split_holder
	.type split_holder, @function
split_holder:
	.cfi_startproc
	nop
	.globl split_held
	.type split_held, @function
split_held:
	ret
	.cfi_endproc
	.size split_held, . - split_held

/* States no size, and nothing else tells its size. */
	.p2align 4
	.globl split_unknown
	.type split_unknown, @function
split_unknown:
	ret

	.p2align 4
.Lnameless:
	.cfi_startproc
	lea 1(%rdi), %rax
	ret
	.cfi_endproc

	.section .text.unlikely, "ax", @progbits
.Lpart:
	.cfi_startproc
	.cfi_def_cfa_offset 16
	.cfi_offset %rbx, -16
	mov $7, %eax
	pop %rbx
	ret
	.cfi_endproc

	.section .rodata
	.balign 4
.Ltable:
	.long .Lone - .Ltable, .Ltwo - .Ltable

	.data
	.balign 8
slot:
	.quad split_parts

	.section .note.GNU-stack, "", @progbits
