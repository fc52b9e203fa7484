/*
 * How clients end: with requests under way, in a child of fork(), by mistake. One argument: the pool's addresses.
 */
#include <yagura.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REQUESTS = 500, THREADS = 8 };

static void check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s: not as it should be (%s)\n", what, yagura_error_message());
        _exit(1);
    }
}

static yagura_bytes text(const char *text) {
    yagura_bytes bytes = {text, strlen(text)};
    return bytes;
}

static yagura_client *open_pool(const char *addresses) {
    yagura_client *client = NULL;
    yagura_options *options = yagura_options_new();
    /* A short queue, so that requests wait in all places there are. */
    check(yagura_options_set(options, "queue", "4") == YAGURA_OK, "an option");
    check(yagura_open(addresses, options, &client) == YAGURA_OK, "open");
    yagura_options_free(options);
    return client;
}

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static int done[REQUESTS];
static pthread_t maker;

static void count(void *context, yagura_status status, yagura_value *value) {
    int *place = (int *)context;
    check(status == YAGURA_OK || status == YAGURA_CLOSED, "what became of a request");
    check(!pthread_equal(maker, pthread_self()), "a completion is never called by the thread that made the request");
    yagura_value_free(value);
    pthread_mutex_lock(&held);
    ++*place;
    pthread_mutex_unlock(&held);
}

/* Every request that was made is answered once, before the close returns. */
static void close_under_way(const char *addresses) {
    yagura_client *client = open_pool(addresses);
    int index;
    maker = pthread_self();
    for (index = 0; index < REQUESTS; index++) {
        check(yagura_put_async(client, text("under way"), text("value"), NULL, count, &done[index]) == YAGURA_OK, "put");
    }
    check(yagura_close(client) == YAGURA_OK, "close");
    for (index = 0; index < REQUESTS; index++)
        check(done[index] == 1, "a completion comes exactly once");
}

static void *use(void *context) {
    yagura_client *client = (yagura_client *)context;
    char name[32];
    yagura_value *value = NULL;
    int index;
    snprintf(name, sizeof name, "thread-%lu", (unsigned long)pthread_self());
    for (index = 0; index < 30; index++) {
        check(yagura_put(client, text(name), text("mine"), NULL) == YAGURA_OK, "put");
        check(yagura_get(client, text(name), &value) == YAGURA_OK, "get");
        check(yagura_value_length(value) == 4 && memcmp(yagura_value_data(value), "mine", 4) == 0, "own value");
        yagura_value_free(value);
    }
    return NULL;
}

static void many_threads(const char *addresses) {
    yagura_client *client = open_pool(addresses);
    pthread_t threads[THREADS];
    int index;
    for (index = 0; index < THREADS; index++)
        check(pthread_create(&threads[index], NULL, use, client) == 0, "a thread");
    for (index = 0; index < THREADS; index++)
        pthread_join(threads[index], NULL);
    check(yagura_close(client) == YAGURA_OK, "close");
}

static void in_a_child(const char *addresses) {
    yagura_client *client = open_pool(addresses);
    yagura_value *value = NULL;
    int status = 0;
    pid_t child;
    check(yagura_put(client, text("family"), text("one"), NULL) == YAGURA_OK, "put");
    child = fork();
    check(child >= 0, "fork");
    if (child == 0) {
        yagura_client *own = NULL;
        check(yagura_get(client, text("family"), &value) == YAGURA_USAGE, "the parent's client in a child");
        check(strstr(yagura_error_message(), "fork") != NULL, "its sentence");
        check(yagura_get_async(client, text("family"), count, NULL) == YAGURA_USAGE, "asynchronously too");
        check(yagura_close(client) == YAGURA_OK, "close the parent's client in a child");
        own = open_pool(addresses);
        check(yagura_put(own, text("family"), text("two"), NULL) == YAGURA_OK, "a child's own client");
        check(yagura_close(own) == YAGURA_OK, "close in a child");
        _exit(0);
    }
    check(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child");
    check(yagura_get(client, text("family"), &value) == YAGURA_OK, "the parent goes on");
    check(memcmp(yagura_value_data(value), "two", 3) == 0, "and sees what the child wrote");
    yagura_value_free(value);
    check(yagura_close(client) == YAGURA_OK, "close");
}

static void mistakes(const char *addresses) {
    yagura_client *client = open_pool(addresses);
    static char large[YAGURA_VALUE_MAX + 1];
    yagura_bytes too_long = {large, sizeof large};
    int calls = 0;
    check(yagura_put_async(client, text("large"), too_long, NULL, count, &calls) == YAGURA_USAGE && calls == 0,
          "what fails at once is said at once, and not again");
    check(yagura_update(client, text("key"), NULL, NULL) == YAGURA_USAGE, "nobody decides");
    check(yagura_close(client) == YAGURA_OK, "close");
    check(yagura_close(NULL) == YAGURA_OK, "close nothing");
    yagura_options_free(NULL);
    yagura_value_free(NULL);
    yagura_scan_free(NULL);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    close_under_way(argv[1]);
    many_threads(argv[1]);
    in_a_child(argv[1]);
    mistakes(argv[1]);
    printf("all ends are well\n");
    return 0;
}
