/* Preloaded, it answers what the address of the host LOST_NAME is: what stands in the file
 * LOST_NAME_IN. While there is no such file, no name server answers.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int lookup(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
    const char *name = getenv("LOST_NAME"), *path = getenv("LOST_NAME_IN");
    char address[64] = "";
    if (name && path && node && strcmp(node, name) == 0) {
        FILE *file = fopen(path, "re");
        if (!file)
            return EAI_AGAIN;
        char *line = fgets(address, sizeof address, file);
        fclose(file);
        if (!line)
            return EAI_AGAIN;
        address[strcspn(address, "\n")] = '\0';
        node = address;
    }
    return ((lookup *)dlsym(RTLD_NEXT, "getaddrinfo"))(node, service, hints, found);
}
