/*
 * Servers in other languages: programs of their own in the archive, which is complete without them.
 */
#include "peers.h"

#include <stdio.h>
#include <unistd.h>

static void become(const char *program, int port)
{
	char text[16];
	snprintf(text, sizeof text, "%d", port);
	execl(program, program, text, (char *)NULL);
	/* Not in this archive. */
	_exit(1);
}

void serve_go(int port)
{
	become("/bin/go-server", port);
}

void serve_tokio(int port)
{
	become("/bin/tokio-server", port);
}
