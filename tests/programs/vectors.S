/* Functions whose first instruction is a vector one, with an opcode byte that means popf or ret without its prefix.
 * Compilers write them so: `b - a * c` at -O2 -mfma begins with vfnmadd132sd. */
	.text
	.globl vector_fnmadd
	.type vector_fnmadd, @function
	.p2align 4
vector_fnmadd: /* xmm0 = xmm1 - xmm0 * xmm2 */
	.byte 0xc4, 0xe2, 0xf1, 0x9d, 0xc2
	ret
	.size vector_fnmadd, . - vector_fnmadd

	.globl vector_less
	.type vector_less, @function
	.p2align 4
vector_less: /* vcmplt_oqps: xmm0 = xmm0 < xmm1 */
	.byte 0xc5, 0xf8, 0xc2, 0xc1, 0x11
	ret
	.size vector_less, . - vector_less

	.globl vector_busy
	.type vector_busy, @function
	.p2align 4
vector_busy: /* xmm0 = xmm1 - xmm0 * xmm2, and a third of a millisecond of work: hot, and seldom called */
	.byte 0xc4, 0xe2, 0xf1, 0x9d, 0xc2
	mov $1000000, %eax
0:	dec %eax
	jnz 0b
	ret
	.size vector_busy, . - vector_busy

	.section .note.GNU-stack, "", @progbits
