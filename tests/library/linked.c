/* A program that is linked with a library, which is initialised before the program. */
int mp_child_main(void);
int embedded_run(const char *name);

int main(int argc, char **argv) {
    if (mp_child_main() != 0) return 66;
    return embedded_run(argc > 1 ? argv[1] : "everything");
}
