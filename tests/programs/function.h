/* For assembly: a function with its unwind table, between `begin` and `end`. */
.macro begin name
    .p2align 4
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
.endm

.macro end name
    .cfi_endproc
    .size \name, . - \name
.endm
