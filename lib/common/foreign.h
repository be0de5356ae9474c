/* SPDX-License-Identifier: MIT */
/* Descriptors that another process gave, whatever they are. */
#ifndef TMESH_COMMON_FOREIGN_H
#define TMESH_COMMON_FOREIGN_H

/* close(), but never waits for who serves the file. */
void tmesh_foreign_close(int fd);
void tmesh_foreign_close_all(const int *fds, unsigned int count);

#endif /* TMESH_COMMON_FOREIGN_H */
