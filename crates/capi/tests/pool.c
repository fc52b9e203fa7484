/*
 * Which pool is meant, where members of two are at the addresses. One argument: an address of each.
 */
#include <yagura.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ID = 36 };

static void check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s: not as it should be (%s)\n", what, yagura_error_message());
        exit(1);
    }
}

static yagura_status open_pool(const char *addresses, const char *id, yagura_client **client) {
    yagura_options *options = yagura_options_new();
    yagura_status status;
    check(id == NULL || yagura_options_set(options, "pool-id", id) == YAGURA_OK, "an identity");
    status = yagura_open(addresses, options, client);
    yagura_options_free(options);
    return status;
}

/* What the pool of this identity has under a key that each has its own value of. */
static void put_and_get(const char *addresses, const char *id) {
    yagura_bytes key = {"pool", 4}, value = {id, ID};
    yagura_client *client = NULL;
    yagura_value *found = NULL;
    check(open_pool(addresses, id, &client) == YAGURA_OK, "open by identity");
    check(yagura_add(client, key, value, NULL) == YAGURA_OK, "the other pool has put it there");
    check(yagura_get(client, key, &found) == YAGURA_OK, "get");
    check(memcmp(yagura_value_data(found), id, ID) == 0, "what it has put");
    yagura_value_free(found);
    check(yagura_close(client) == YAGURA_OK, "close");
}

int main(int argc, char **argv) {
    static const char foreign[] = "00000000-0000-4000-8000-000000000000";
    yagura_options *options = yagura_options_new();
    yagura_client *client = NULL;
    char ids[2][ID + 1] = {{0}, {0}};
    const char *told;
    int index;
    if (argc != 2)
        return 2;
    check(yagura_options_set(options, "pool-id", "a pool") == YAGURA_USAGE, "what is no identity");
    yagura_options_free(options);
    check(open_pool(argv[1], NULL, &client) == YAGURA_USAGE, "one of two pools was taken");
    /* Whoever names one that is not there is told which are. */
    check(open_pool(argv[1], foreign, &client) == YAGURA_REFUSED, "another pool was taken");
    told = strstr(yagura_error_message(), "but of ");
    for (index = 0; index < 2; index++) {
        check(told != NULL && strlen(told) > 7 + ID, "what is there is told");
        memcpy(ids[index], told + 7, ID);
        told = strstr(told, "; ");
        told = told == NULL ? NULL : told - 5;
    }
    put_and_get(argv[1], ids[0]);
    put_and_get(argv[1], ids[1]);
    printf("each was reached\n");
    return 0;
}
