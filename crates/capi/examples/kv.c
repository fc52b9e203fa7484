/*
 * The store from C (and, as it is, from C++): every function once.
 *
 *   cc kv.c $(pkg-config --cflags --libs yagura) -lpthread -o kv && ./kv 127.0.0.1:4421
 */
#include <yagura.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with the library's own words unless a function said what it should. */
static void expect(yagura_status wanted, yagura_status status, const char *what) {
    if (status != wanted) {
        fprintf(stderr, "%s: status %d, expected %d: %s\n", what, (int)status, (int)wanted, yagura_error_message());
        exit(1);
    }
}

static void check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s: not as it should be\n", what);
        exit(1);
    }
}

static yagura_bytes text(const char *text) {
    yagura_bytes bytes;
    bytes.data = text;
    bytes.length = strlen(text);
    return bytes;
}

static int holds(const yagura_value *value, const char *wanted) {
    size_t length = yagura_value_length(value);
    return length == strlen(wanted) && memcmp(yagura_value_data(value), wanted, length) == 0;
}

static void simple(yagura_client *client) {
    yagura_value *value = NULL;
    yagura_put_options options;
    expect(YAGURA_OK, yagura_put(client, text("lantern"), text("lit"), NULL), "put");
    expect(YAGURA_OK, yagura_get(client, text("lantern"), &value), "get");
    check(holds(value, "lit") && yagura_value_expiry(value) == 0, "what was put");
    yagura_value_free(value);
    options.expiry = UINT64_C(4102444800000); /* in the year 2100 */
    options.tag = 7;
    expect(YAGURA_OK, yagura_put(client, text("lantern"), text("dim"), &options), "put with options");
    expect(YAGURA_OK, yagura_get(client, text("lantern"), &value), "get with options");
    check(yagura_value_expiry(value) == options.expiry && yagura_value_tag(value) == 7, "expiry and tag");
    yagura_value_free(value);
    expect(YAGURA_OK, yagura_delete(client, text("lantern")), "delete");
    expect(YAGURA_ABSENT, yagura_get(client, text("lantern"), &value), "get what was deleted");
    expect(YAGURA_ABSENT, yagura_delete(client, text("lantern")), "delete what was deleted");
}

static void conditional(yagura_client *client) {
    yagura_value *value = NULL;
    yagura_bytes door = text("door");
    char version[YAGURA_VERSION_MAX];
    const char *old;
    int64_t sum = 0, first = 40;
    size_t length = 0;
    expect(YAGURA_OK, yagura_add(client, door, text("open"), NULL), "add");
    expect(YAGURA_CHANGED, yagura_add(client, door, text("shut"), NULL), "add what is there");
    expect(YAGURA_OK, yagura_replace(client, door, text("ajar"), NULL), "replace");
    expect(YAGURA_ABSENT, yagura_replace(client, text("gate"), text("ajar"), NULL), "replace what is not there");
    expect(YAGURA_OK, yagura_get(client, door, &value), "get");
    old = yagura_value_version(value);
    expect(YAGURA_OK, yagura_compare_and_set(client, door, old, text("shut"), NULL, version), "compare and set");
    expect(YAGURA_CHANGED, yagura_compare_and_set(client, door, old, text("open"), NULL, NULL), "an old version");
    yagura_value_free(value);
    expect(YAGURA_OK, yagura_compare_and_set(client, door, version, text("locked"), NULL, NULL), "the version it gave");
    expect(YAGURA_CHANGED, yagura_compare_and_delete(client, door, version), "delete an old version");
    expect(YAGURA_OK, yagura_take(client, door, &value), "take");
    check(holds(value, "locked"), "what was taken");
    yagura_value_free(value);
    expect(YAGURA_ABSENT, yagura_take(client, door, &value), "take what was taken");
    expect(YAGURA_ABSENT, yagura_compare_and_set(client, door, version, text("open"), NULL, NULL), "compare with nothing");
    expect(YAGURA_ABSENT, yagura_increment(client, text("visits"), 2, NULL, &sum), "increment nothing");
    expect(YAGURA_OK, yagura_increment(client, text("visits"), 2, &first, &sum), "increment");
    check(sum == 42, "the sum");
    expect(YAGURA_OK, yagura_append(client, text("visits"), text(" and more"), &length), "append");
    check(length == 11, "the whole length");
    expect(YAGURA_NOT_A_NUMBER, yagura_increment(client, text("visits"), 1, NULL, &sum), "increment a text");
    expect(YAGURA_OK, yagura_delete(client, text("visits")), "delete");
}

/* Sells one of what is in stock. */
struct sale {
    char left[24];
    int sold;
};

static yagura_decision sell(void *context, const yagura_value *found, yagura_bytes *value, yagura_put_options *options) {
    struct sale *sale = (struct sale *)context;
    int left = 0;
    size_t index;
    for (index = 0; index < yagura_value_length(found); index++)
        left = left * 10 + ((const char *)yagura_value_data(found))[index] - '0';
    sale->sold = left > 0;
    if (left < 2)
        return left == 1 ? YAGURA_DELETE : YAGURA_KEEP;
    snprintf(sale->left, sizeof sale->left, "%d", left - 1);
    *value = text(sale->left);
    options->tag = yagura_value_tag(found);
    return YAGURA_PUT;
}

static void updates(yagura_client *client) {
    struct sale sale;
    int turn;
    expect(YAGURA_OK, yagura_put(client, text("stock"), text("2"), NULL), "put");
    for (turn = 0; turn < 3; turn++) {
        expect(YAGURA_OK, yagura_update(client, text("stock"), sell, &sale), "update");
        check(sale.sold == (turn < 2), "two were sold, and no third");
    }
}

static void many(yagura_client *client) {
    yagura_bytes keys[3], values[3], key;
    yagura_value *found[3];
    yagura_status statuses[3], status;
    yagura_scan *scan = NULL;
    size_t length = 0, index, count = 0;
    keys[0] = text("lamp-a"), keys[1] = text("lamp-b"), keys[2] = text("lamp-c");
    values[0] = text("red"), values[1] = text("green"), values[2] = text("blue");
    expect(YAGURA_OK, yagura_put_many(client, 3, keys, values, statuses), "put many");
    keys[1] = text("lamp-none");
    expect(YAGURA_OK, yagura_get_many(client, 3, keys, found, statuses), "get many");
    check(statuses[0] == YAGURA_OK && statuses[1] == YAGURA_ABSENT && found[1] == NULL, "statuses of each");
    check(holds(found[0], "red") && holds(found[2], "blue"), "values of each");
    for (index = 0; index < 3; index++)
        yagura_value_free(found[index]);
    expect(YAGURA_OK, yagura_scan_open(client, text("lamp-"), &scan), "scan");
    while ((status = yagura_scan_next(scan, &key, &length)) == YAGURA_OK) {
        check(key.length == 6 && memcmp(key.data, "lamp-", 5) == 0 && length >= 3, "a key of the scan");
        count++;
    }
    expect(YAGURA_ABSENT, status, "the scan's end");
    yagura_scan_free(scan);
    check(count == 3, "all keys of the scan");
}

/* Completions come on a thread of the client: what they share with the rest needs a lock. */
typedef struct tally {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    yagura_client *client;
    int done, wrong;
} tally;

static void count_one(tally *tally, int right) {
    if (!right)
        fprintf(stderr, "a completion: %s\n", yagura_error_message());
    pthread_mutex_lock(&tally->lock);
    tally->done++;
    tally->wrong += !right;
    pthread_cond_signal(&tally->changed);
    pthread_mutex_unlock(&tally->lock);
}

static void got(void *context, yagura_status status, yagura_value *value) {
    tally *all = (tally *)context;
    yagura_value *other = NULL;
    int right = status == YAGURA_OK && holds(value, "on");
    /* A completion that blocked would wait for itself: it is told so. */
    right = right && yagura_get(all->client, text("key"), &other) == YAGURA_USAGE;
    yagura_value_free(value);
    count_one(all, right);
}

/* A completion may start further requests. */
static void put_then_get(void *context, yagura_status status, yagura_value *value) {
    tally *all = (tally *)context;
    if (status != YAGURA_OK || value != NULL || yagura_get_async(all->client, text("key"), got, all) != YAGURA_OK)
        count_one(all, 0);
}

static void changed(void *context, yagura_status status, yagura_value *value) {
    yagura_value_free(value);
    count_one((tally *)context, status == YAGURA_OK || status == YAGURA_CHANGED || status == YAGURA_ABSENT);
}

static void wait_for(tally *tally, int count) {
    pthread_mutex_lock(&tally->lock);
    while (tally->done < count)
        pthread_cond_wait(&tally->changed, &tally->lock);
    check(tally->wrong == 0, "completions");
    tally->done = 0;
    pthread_mutex_unlock(&tally->lock);
}

static void asynchronous(yagura_client *client) {
    enum { REQUESTS = 200 };
    tally tally = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, 0, 0};
    int index;
    tally.client = client;
    for (index = 0; index < REQUESTS; index++)
        expect(YAGURA_OK, yagura_put_async(client, text("key"), text("on"), NULL, put_then_get, &tally), "put");
    wait_for(&tally, REQUESTS);
    expect(YAGURA_OK, yagura_add_async(client, text("key"), text("off"), NULL, changed, &tally), "add");
    expect(YAGURA_OK, yagura_take_async(client, text("key"), changed, &tally), "take");
    expect(YAGURA_OK, yagura_delete_async(client, text("key"), changed, &tally), "delete");
    wait_for(&tally, 3);
}

static void *count_up(void *context) {
    int64_t sum = 0, first = 0;
    int index;
    for (index = 0; index < 10; index++)
        expect(YAGURA_OK, yagura_increment((yagura_client *)context, text("turns"), 1, &first, &sum), "increment");
    return NULL;
}

static void by_threads(yagura_client *client) {
    pthread_t threads[4];
    int64_t sum = 0;
    size_t index;
    for (index = 0; index < 4; index++)
        check(pthread_create(&threads[index], NULL, count_up, client) == 0, "a thread");
    for (index = 0; index < 4; index++)
        pthread_join(threads[index], NULL);
    expect(YAGURA_OK, yagura_increment(client, text("turns"), 0, NULL, &sum), "read the count");
    check(sum == 40, "every increment counted once");
    expect(YAGURA_OK, yagura_delete(client, text("turns")), "delete");
}

static void mistakes(yagura_client *client, yagura_options *options) {
    yagura_client *other = NULL;
    yagura_value *value = NULL;
    yagura_bytes nothing = {NULL, 5};
    expect(YAGURA_USAGE, yagura_put(client, text(""), text("x"), NULL), "an empty key");
    expect(YAGURA_USAGE, yagura_get(NULL, text("x"), &value), "no client");
    expect(YAGURA_USAGE, yagura_get(client, nothing, &value), "no bytes");
    expect(YAGURA_USAGE, yagura_get_async(client, text("x"), NULL, NULL), "no completion");
    expect(YAGURA_USAGE, yagura_compare_and_set(client, text("x"), "?", text("y"), NULL, NULL), "no version");
    check(strstr(yagura_error_message(), "version") != NULL, "an error's sentence");
    expect(YAGURA_USAGE, yagura_options_set(options, "speed", "high"), "no option");
    expect(YAGURA_UNAVAILABLE, yagura_open("127.0.0.1:1", NULL, &other), "nobody there");
    check(other == NULL && value == NULL, "places that were not filled in");
}

int main(int argc, char **argv) {
    yagura_options *options = yagura_options_new();
    yagura_client *client = NULL;
    if (argc != 2) {
        fprintf(stderr, "usage: kv HOST:PORT[,HOST:PORT...]\n");
        return 2;
    }
    expect(YAGURA_OK, yagura_options_set(options, "reactors", "2"), "an option");
    expect(YAGURA_OK, yagura_options_set(options, "timeout-ms", "20000"), "an option");
    expect(YAGURA_OK, yagura_open(argv[1], options, &client), "open");
    simple(client);
    conditional(client);
    updates(client);
    many(client);
    asynchronous(client);
    by_threads(client);
    mistakes(client, options);
    yagura_options_free(options);
    expect(YAGURA_OK, yagura_close(client), "close");
    printf("yagura %s: all is well\n", yagura_version());
    return 0;
}
