/* Block devices: a namespace and a volume, whose names are the arguments, written and read through queues. */
#include <yagura.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 16
#define BLOCK 4096

#define CHECK(what)                                                                               \
    do {                                                                                          \
        if (!(what)) {                                                                            \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, yagura_error_message());        \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

static unsigned char written[DEPTH][BLOCK], found[DEPTH][BLOCK];

/* Takes all events of requests that are under way, each of which has an integer of its own as its context. */
static void take(yagura_queue *queue, int *places, size_t under_way) {
    yagura_event events[5];
    size_t count, i;

    while (under_way > 0) {
        CHECK(yagura_queue_wait(queue, 1, 5, -1, events, &count) == YAGURA_OK && count >= 1 && count <= 5);
        for (i = 0; i < count; i++) {
            CHECK(events[i].status == YAGURA_OK);
            ++*(int *)events[i].context;
        }
        under_way -= count;
    }
    for (under_way = 0; under_way < DEPTH; under_way++) CHECK(places[under_way] <= 1);
}

static void use(const char *name) {
    yagura_device *device;
    yagura_queue *queue;
    yagura_event event;
    size_t count;
    int i, ended[DEPTH] = {0}, flushed = 0;

    CHECK(yagura_device_open(name, NULL, &device) == YAGURA_OK);
    CHECK(yagura_device_size(device) > 1 << 20 && yagura_device_block_size(device) == BLOCK);
    CHECK(yagura_device_transfer_max(device) >= 65536);
    CHECK(yagura_queue_new(device, DEPTH, &queue) == YAGURA_OK);
    CHECK(yagura_queue_wait(queue, 1, 1, -1, &event, &count) == YAGURA_OK && count == 0);
    for (i = 0; i < DEPTH; i++) {
        memset(written[i], name[0] + i, BLOCK);
        CHECK(yagura_queue_write(queue, (uint64_t)i * BLOCK, written[i], BLOCK, i % 2, &ended[i]) == YAGURA_OK);
        /* It was copied. */
        memset(written[i], 0, BLOCK);
    }
    CHECK(yagura_queue_flush(queue, &flushed) == YAGURA_USAGE);
    take(queue, ended, DEPTH);
    CHECK(yagura_queue_flush(queue, &flushed) == YAGURA_OK);
    CHECK(yagura_queue_wait(queue, 1, 1, 60000, &event, &count) == YAGURA_OK && count == 1);
    CHECK(event.context == &flushed && event.status == YAGURA_OK);
    memset(ended, 0, sizeof ended);
    for (i = 0; i < DEPTH; i++) CHECK(yagura_queue_read(queue, (uint64_t)i * BLOCK, found[i], BLOCK, &ended[i]) == YAGURA_OK);
    take(queue, ended, DEPTH);
    for (i = 0; i < DEPTH; i++) CHECK(found[i][0] == name[0] + i && !memcmp(found[i], found[i] + 1, BLOCK - 1));
    CHECK(yagura_queue_discard(queue, 0, DEPTH * BLOCK, &flushed) == YAGURA_OK);
    CHECK(yagura_queue_wait(queue, 1, 1, -1, &event, &count) == YAGURA_OK && event.status == YAGURA_OK);
    /* Wrong ones. */
    CHECK(yagura_queue_read(queue, 1, found[0], BLOCK, NULL) == YAGURA_USAGE);
    CHECK(yagura_queue_read(queue, 0, NULL, BLOCK, NULL) == YAGURA_USAGE);
    CHECK(yagura_queue_write(queue, 0, written, (size_t)1 << 40, 0, NULL) == YAGURA_USAGE);
    /* What lies behind the end is the target's to refuse. */
    CHECK(yagura_queue_read(queue, yagura_device_size(device), found[0], BLOCK, &ended) == YAGURA_OK);
    CHECK(yagura_queue_wait(queue, 1, 1, -1, &event, &count) == YAGURA_OK && count == 1);
    CHECK(event.status == YAGURA_USAGE && strlen(yagura_error_message()) > 0);
    /* One is left under way. */
    CHECK(yagura_queue_read(queue, 0, found[0], BLOCK, NULL) == YAGURA_OK);
    yagura_queue_free(queue);
    CHECK(yagura_device_close(device) == YAGURA_OK);
}

int main(int count, char **arguments) {
    yagura_device *device;

    CHECK(count == 3);
    use(arguments[1]);
    use(arguments[2]);
    CHECK(yagura_device_open("volume", NULL, &device) == YAGURA_USAGE);
    CHECK(yagura_device_open("namespace 127.0.0.1:1", NULL, &device) == YAGURA_UNAVAILABLE);
    CHECK(yagura_device_close(NULL) == YAGURA_OK);
    yagura_queue_free(NULL);
    puts("both are well");
    return 0;
}
