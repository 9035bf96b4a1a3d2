/* A program that loads a library while it runs, and calls it. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 65;
    }
    if (strcmp(argv[2], "--worker") == 0) {
        int (*child_main)(void) = (int (*)(void))dlsym(library, "mp_child_main");
        int code = child_main();
        printf("host: no worker, %d\n", code);
        return code;
    }
    printf("host: main\n");
    fflush(stdout);
    int (*run)(const char *) = (int (*)(const char *))dlsym(library, "embedded_run");
    int code = run(argv[2]);
    dlclose(library);
    library = dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD);
    printf("host: %s\n", library ? "still loaded" : "unloaded");
    fflush(stdout);
    return code;
}
