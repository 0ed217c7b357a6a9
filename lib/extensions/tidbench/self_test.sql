-- Have every structure look a small table up; the extension itself checks how much is found.
SELECT tidbench_prepare(1000, 10, 5, 10, 30);

DO $$
DECLARE
    structure text;
BEGIN
    FOREACH structure IN ARRAY tidbench_structures() LOOP
        PERFORM tidbench_load(structure), tidbench_look_up();
    END LOOP;
END
$$;

SELECT tidbench_release();

SELECT true, format('%s structures found every dead row and no other', cardinality(tidbench_structures()) - 1);
