/* A target that wishes its watcher ill: its name and the name of its hot function would speak to a terminal, and it maps
 * the file of its first argument as if it were code. With another argument it is quiet otherwise. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

/* ESC ] 0 ; o w n e d BEL, CSI as one character, a change of direction. */
uint64_t evil(uint64_t n) __asm__("\"evil\033]0;owned\007\302\2332J\342\200\256\"");

__attribute__((noinline)) uint64_t evil(uint64_t n)
{
	uint64_t x = n;

	for (int i = 0; i < 2000; i++)
		x = x * 6364136223846793005u + 1442695040888963407u;
	return x;
}

static volatile uint64_t sum;

int main(int argc, char **argv)
{

	prctl(PR_SET_NAME, "x\033]0;y\007\nz");
	if (argc > 1) {
		int fd = open(argv[1], O_RDONLY);

		if (fd < 0 || mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED)
			return 1;
	}
	puts("ready");
	fflush(stdout);
	for (;;) {
		for (int i = 0; i < 1000; i++)
			sum += evil(sum);
		usleep(100);
	}
}
